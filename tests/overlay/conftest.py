"""These tests run in the environment of real vLLM (`nox -s overlay`); anywhere else there is nothing to collect."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("torch", "vllm_glm_exl3"))) else ["test_*.py"]
