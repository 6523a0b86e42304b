"""File formats, read strictly: nothing is believed before it is checked, nothing is unpacked beyond its stated size."""

from sightline.data.formats.csv_rows import read_csv
from sightline.data.formats.idx import read_idx
from sightline.data.formats.npz import Field, read_arrays, read_npz
from sightline.data.formats.webp_grid import read_webp_grid

__all__ = ["Field", "read_arrays", "read_csv", "read_idx", "read_npz", "read_webp_grid"]
