"""Where the batch sits in a value of a graph: the tags that the proof gives to every node, and the verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, fx

if TYPE_CHECKING:
    from torch.export import ExportedProgram


@dataclass(frozen=True)
class BatchAxis:
    """The batch sits in this dimension, which is (before, batch, after) in row-major order.

    What the tag claims: the part of the value at position i of the batch is a function of row i of the input, of
    batch-free values and of random numbers, and not of how many rows there are.
    """

    dim: int
    before: int = 1
    after: int = 1

    def moved_to(self, dim: int) -> "BatchAxis":
        """The same batch in another dimension."""
        return BatchAxis(dim, self.before, self.after)


@dataclass(frozen=True)
class BatchPositions:
    """0, 1, ..., batch - 1 along this dimension, all others of length one: they may only index the batch."""

    dim: int


@dataclass(frozen=True)
class BatchSize:
    """A Python number made of the batch size: it may only stand where a shape is wanted."""


Tag = BatchAxis | BatchPositions | BatchSize | None
"""None: batch-free, a function of parameters, buffers, constants and random numbers alone."""
Tags = Tag | tuple[Tag, ...]


class Mixing(Exception):
    """A rule cannot show that a value keeps examples apart; becomes an `Objection`."""

    def __init__(self, law: str, way_out: str = "") -> None:
        super().__init__(law)
        self.law, self.way_out = law, way_out


def object_to(law: str, way_out: str = "") -> NoReturn:
    """Say that an operation cannot be certified, and why."""
    raise Mixing(law, way_out)


@dataclass(frozen=True)
class Objection:
    """Why a module is not certified: the first operation without a proof, its source line, the law, the way out."""

    operation: str
    source: str
    law: str
    way_out: str

    def __str__(self) -> str:
        """All of it on one line."""
        where = f" ({self.source})" if self.source else ""
        return f"{self.operation}{where}: {self.law}; {self.way_out}"


@dataclass(frozen=True, eq=False)
class CertifiedGraph:
    """A functional graph of which every node has a tag: row i of the output depends on row i of the input only.

    `parameters`, `buffers` and `constants` say what each placeholder but the input is given. Names are those of
    `named_parameters()` and `named_buffers()`; tied tensors have one name.
    """

    exported: "ExportedProgram"
    axes: Mapping[fx.Node, Tags] = field(repr=False)
    """The tag of every node: an axis, several for several results, or None for what is batch-free."""
    parameters: Mapping[fx.Node, str]
    buffers: Mapping[fx.Node, str]
    constants: Mapping[fx.Node, Tensor] = field(repr=False)
    """Tensors that the code made by itself while it was exported."""

    def run(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The graph's output for a batch, with these tensors (by name) as parameters and buffers."""
        names = {**self.parameters, **self.buffers}
        given = [
            self.constants[node] if node in self.constants else tensors[names[node]] if node in names else x
            for node in self.exported.graph.nodes
            if node.op == "placeholder"
        ]
        output: tuple[Any, ...] = self.exported.graph_module(*given)
        found: Tensor = output[0]
        return found


@dataclass(frozen=True, eq=False)
class Certificate(CertifiedGraph):
    """The proof for a module in training; `evaluation` is the same module's graph without dropout, proven as well.

    The graph is what may run: a proof about it says nothing about the module's Python code.
    """

    evaluation: CertifiedGraph

    def run_graph(self, tensors: Mapping[str, Tensor], x: Tensor, *, training: bool) -> Tensor:
        """The output of the training graph (dropout draws from torch's generator) or of the evaluation graph."""
        return (self if training else self.evaluation).run(tensors, x)
