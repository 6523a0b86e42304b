"""Normal numbers from raw words in compiled code: the same function of the same words as torch's path has."""

import torch
from torch import Tensor

from sightline.training.compiled.library import Missing, find_library


def noise_missing() -> str | None:
    """Why there is no compiled noise here; None when there is."""
    library = find_library()
    return library.reason if isinstance(library, Missing) else None


def normals_of(words: Tensor) -> Tensor | None:
    """Two standard normal float32 numbers for each of these int64 words, first all cosines; None without compiled code.

    Guarantees: a function of the words alone, whoever drew them; equal to `draw_gaussian`'s up to float32 rounding,
    with tails as long; never NaN.
    """
    library = find_library()
    if isinstance(library, Missing):
        return None
    words, both = words.contiguous(), torch.empty(2 * len(words))
    library.sightline_normals(words.data_ptr(), len(words), both.data_ptr())
    return both
