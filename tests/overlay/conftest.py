"""These tests run in the environment of real vLLM (`nox -s overlay`); anywhere else only those that read sources are collected."""

from importlib.util import find_spec
from pathlib import Path

ANYWHERE = ("test_alone.py",)
HERE = all(map(find_spec, ("torch", "vllm_glm_exl3")))
collect_ignore = [] if HERE else [path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in ANYWHERE]
