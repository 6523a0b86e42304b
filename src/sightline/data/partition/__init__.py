"""Ways to deal examples to clients: pure functions of labels or owners and an rng, giving one index per client."""

from sightline.data.partition.by_owner import by_owner, grouped_users, one_user_each
from sightline.data.partition.clusters import cluster_of, deal_clusters, share_by_cluster
from sightline.data.partition.dirichlet import deal_dirichlet
from sightline.data.partition.iid import deal_iid
from sightline.data.partition.label_shards import label_shards

__all__ = [
    "by_owner",
    "cluster_of",
    "deal_clusters",
    "deal_dirichlet",
    "deal_iid",
    "grouped_users",
    "label_shards",
    "one_user_each",
    "share_by_cluster",
]
