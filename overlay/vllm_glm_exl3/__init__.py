"""EXL3 for vLLM, as a plugin of the group vllm.general_plugins. Importing this imports neither torch nor vllm."""

import os
from importlib.metadata import PackageNotFoundError, version

__all__ = ["KNOWN_VLLM", "WrongVllm", "register"]
__version__ = "0.1.0"

# Releases whose RoutedExperts, LinearBase and quantization registry were read and run against.
KNOWN_VLLM = ("0.32.",)


class WrongVllm(RuntimeError):
    """This plugin does not know the vLLM it was loaded into."""


def check_version(found: str) -> None:
    """Raise WrongVllm unless `found` is one of the releases that this plugin was made for."""
    if not found.startswith(KNOWN_VLLM):
        known = ", ".join(prefix + "*" for prefix in KNOWN_VLLM)
        raise WrongVllm(
            f"vllm-glm-exl3 {__version__} knows vLLM {known}, and this is vLLM {found}: "
            "install a matching pair, or uninstall vllm-glm-exl3 (VLLM_PLUGINS without glm_exl3 also leaves it out)"
        )


def _vllm_version() -> str:
    try:
        return version("vllm")
    except PackageNotFoundError:
        from vllm.version import __version__ as found

        return str(found)


def register() -> None:
    """Called once by vLLM in every process (API server, model inspection, engine core, workers). Twice is harmless.

    Raises WrongVllm, or Mismatch for a patch that does not fit: an error here stops vLLM, one at import would only be logged.
    """
    check_version(_vllm_version())
    _register_quantization()
    from vllm_glm_exl3.patches import apply_all

    apply_all(os.environ)


def _register_quantization() -> None:
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config

    if "exl3" not in QUANTIZATION_METHODS:
        from vllm_glm_exl3.config import Exl3Config

        register_quantization_config("exl3")(Exl3Config)
