"""Test an installed Sightline, not the one of the clone, in an empty environment (`make wheel-test`)."""

import os
import subprocess
import sys
from importlib.metadata import distribution, version
from importlib.resources import files
from pathlib import Path


def check_compiled_code() -> None:
    """A wheel for a platform brings compiled code, which is found and trains where there is no compiler."""
    from sightline.data import Kind
    from sightline.models import build_model
    from sightline.training.compiled.kernels import WalkKernel, walk_kernel_for
    from sightline.training.compiled.library import Missing, find_library, noise_missing

    os.environ["PATH"] = ""
    os.environ.pop("CC", None)
    found = find_library()
    if "Root-Is-Purelib: true" in (distribution("sightline").read_text("WHEEL") or ""):
        assert isinstance(found, Missing), "a pure wheel has compiled code from somewhere"
        print(f"a pure wheel: {found.reason}")
        return
    assert not isinstance(found, Missing), f"the wheel's compiled code is not found: {found.reason}"
    assert Path(found._name).is_relative_to(sys.prefix), "this is not the wheel's library"
    model = build_model("cnn_small", input_shape=(1, 28, 28), classes=10, kind=Kind.IMAGE, settings={})
    assert isinstance(walk_kernel_for(model), WalkKernel), walk_kernel_for(model)
    assert noise_missing() is None
    print(f"compiled code of the wheel: {Path(found._name).name}")


def main(quickstart: str) -> None:
    import sightline

    assert Path(sightline.__file__).is_relative_to(sys.prefix), "this is not the installed package"
    assert version("sightline") == sightline.__version__
    for name in (
        "py.typed",
        "apps/report/page.html",
        "apps/report/page.css",
        "apps/report/page.js",
        "apps/serve/serve.css",
    ):
        assert files("sightline").joinpath(name).is_file(), f"the wheel does not hold {name}"
    command = [str(Path(sys.executable).with_name("sightline"))]
    subprocess.run([*command, "--version"], check=True)
    subprocess.run([*command, "run", quickstart, "--out", "quickstart"], check=True)
    page = (Path("quickstart") / "report.html").read_text(encoding="utf-8")
    assert "<style>" in page
    assert "<script" in page
    check_compiled_code()


if __name__ == "__main__":
    main(sys.argv[1])
