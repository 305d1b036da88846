"""The only user of huggingface_hub: listing a repository at a commit, and downloading a snapshot into a standard cache."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.errors import LaunchError
from cluster.weights import hub_errors

_WORKERS = 4  # files at the same time; more earns a 429 for anonymous users
_GOOD_XET = (1, 5, 1)  # before, hf_xet could take an early HTTP 416 for the end of a file and report success


@dataclass(frozen=True)
class RemoteFile:
    """A file as the Hub lists it: size in bytes, sha256 of an LFS file, and the name of its blob in the cache."""

    size: int
    sha256: str | None
    blob: str


class Refused(LaunchError):
    """The Hub or its client failed; `why`, in words."""

    def __init__(self, why: hub_errors.Why) -> None:
        super().__init__(why.what, hint=why.hint)
        self.why = why


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids the network, as huggingface_hub reads it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def xet_problem() -> str | None:
    """Why hf_xet must not be used, or None. Switches it off for huggingface_hub, which reads the variable when it is imported."""
    try:
        version = importlib.metadata.version("hf_xet")
    except importlib.metadata.PackageNotFoundError:
        return None
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) >= _GOOD_XET:
        return None
    os.environ["HF_HUB_DISABLE_XET"] = "1"
    return f"hf_xet {version} may end a download early (mended in 1.5.1); plain HTTP is used: pip install -U hf_xet"


@dataclass(frozen=True)
class Hub:
    """A way to the Hub with a token (None: that of the standard token file, if there is one)."""

    token: str | None

    def listing(self, repo: str, revision: str, exclude: Sequence[str]) -> Mapping[str, RemoteFile]:
        """The wanted files of a repository at a commit. Raises Refused."""
        from huggingface_hub import HfApi
        from huggingface_hub.hf_api import RepoFile
        from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

        with self._explained(f"{repo}@{revision[:12]}"):
            tree = HfApi(token=self.token).list_repo_tree(repo, recursive=True, revision=revision)
            files = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
            names = filter_repo_objects(files, ignore_patterns=list(exclude) or None)
            return {name: _remote(files[name]) for name in names}

    def begin(self, repo: str, revision: str, cache_dir: str, exclude: Sequence[str]) -> Download:
        """Start to bring the snapshot into `cache_dir`, in a process of its own: the client's threads cannot be stopped otherwise."""
        request = {"repo": repo, "revision": revision, "cache_dir": cache_dir, "exclude": list(exclude)}
        command = [sys.executable, "-m", __name__]
        root = Path(__file__).resolve().parents[2]
        process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )  # fmt: skip
        assert process.stdin is not None
        with process.stdin as stdin:
            json.dump({"token": self.token, "request": request}, stdin)
        return Download(process)

    def _download(self, repo: str, revision: str, cache_dir: str, exclude: Sequence[str]) -> None:
        """Bring the snapshot into `cache_dir`. What it returns is not proof: the caller verifies. Raises Refused."""
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

        disable_progress_bars()
        with self._explained(f"{repo}@{revision[:12]}"):
            snapshot_download(
                repo, revision=revision, cache_dir=cache_dir, ignore_patterns=list(exclude) or None, max_workers=_WORKERS, token=self.token
            )

    def dataset(self, repo: str, revision: str | None) -> tuple[str, list[str]]:
        """The commit that a revision of a dataset names (None: its main branch), and its files. Raises Refused."""
        from huggingface_hub import HfApi

        with self._explained(f"dataset {repo}@{revision or 'main'}"):
            info = HfApi(token=self.token).dataset_info(repo, revision=revision)
            return str(info.sha), [each.rfilename for each in info.siblings or ()]

    def dataset_file(self, repo: str, commit: str, name: str) -> Path:
        """A file of a dataset, from the standard cache or by way of it. Raises Refused."""
        from huggingface_hub import hf_hub_download

        with self._explained(f"dataset {repo}@{commit[:12]}: {name}"):
            return Path(hf_hub_download(repo, name, repo_type="dataset", revision=commit, token=self.token))

    @contextlib.contextmanager
    def _explained(self, label: str) -> Iterator[None]:
        from huggingface_hub import get_token

        try:
            yield
        except LaunchError:
            raise
        except Exception as error:  # a dozen kinds from three libraries
            why = hub_errors.explain(error, label, bool(self.token or get_token()))
            raise Refused(_without(why, self.token)) from None


@dataclass(frozen=True)
class Download:
    """A download that goes on in another process."""

    process: subprocess.Popen[str]

    def ended(self, within_s: float) -> bool:
        """Whether it has ended, waiting for it so long. Raises Refused when it failed."""
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            text = stdout.read()
        if text:
            raise Refused(hub_errors.Why(**json.loads(text)))
        if self.process.returncode:
            raise Refused(hub_errors.Why(f"the download ended by itself ({self.process.returncode})", "free -h; run it again"))
        return True

    def stop(self) -> None:
        """End it if it still runs."""
        for end in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, end)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(5)


def main() -> int:
    """The other process: a request on stdin; nothing on stdout, or why it failed."""
    given = json.load(sys.stdin)
    try:
        Hub(given["token"])._download(**given["request"])
    except Refused as error:
        print(json.dumps(dataclasses.asdict(error.why)))
        return 1
    return 0


def _without(why: hub_errors.Why, token: str | None) -> hub_errors.Why:
    hide: Callable[[str], str] = lambda text: text.replace(token, "***") if token else text  # noqa: E731
    return hub_errors.Why(hide(why.what), hide(why.hint), why.other_repository)


def _remote(entry: Any) -> RemoteFile:
    if entry.lfs is not None:
        return RemoteFile(entry.lfs.size, entry.lfs.sha256, entry.lfs.sha256)
    return RemoteFile(entry.size, None, entry.blob_id)


if __name__ == "__main__":
    sys.exit(main())
