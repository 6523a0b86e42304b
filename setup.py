"""Wheels hold compiled code where a C compiler is there; without one they are pure. All else is in pyproject.toml."""

import importlib.util
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

COMPILED = Path("sightline", "training", "compiled")


def load_builder():
    """The module that compiles, by its file: the package itself needs torch."""
    path = Path(__file__).parent / "src" / COMPILED / "compile_kernels.py"
    spec = importlib.util.spec_from_file_location("compile_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithKernels(build_py):
    """Puts the libraries beside their sources; an editable installation compiles when it runs."""

    def run(self):
        """Copy the package, then compile into the copy."""
        super().run()
        if not self.editable_mode:
            builder = load_builder()
            builder.build_shipped(Path(self.build_lib) / COMPILED / builder.SHIPPED)


class CompiledDistribution(Distribution):
    """Bound to a platform where a compiler can make the libraries, else pure."""

    def has_ext_modules(self):
        """Whether there is a compiler."""
        return load_builder().find_compiler() is not None


class PlatformWheel(bdist_wheel):
    """Tagged py3-none-<platform> when it holds libraries: they are bound to no version of Python."""

    def get_tag(self):
        """Any Python 3, any ABI."""
        return ("py3", "none", super().get_tag()[2])


setup(distclass=CompiledDistribution, cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel})
