"""The glue between a served sweep and the launcher: this module alone starts and stops a kit, by the launcher's own functions.

ablit/tasks.py calls `points` for `--kit`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ablit import pareto, spec, table
from ablit.__main__ import Job, against_fit, held_out
from ablit.grid import Grid, strengths
from ablit.receipt import Model
from ablit.served import direction as directions
from ablit.served import sweep as sweeps
from ablit.served.ask import Server
from ablit.served.direction import Direction
from ablit.served.facts import RankEdit
from ablit.served.measure import Asked, Booted
from ablit.served.point import Kit, Point
from bench.errors import BadRequest
from bench.kld import windows
from bench.receipt import canonical
from cluster import constraints, identity, lifecycle, place, session, settings, state
from cluster.budget import fit
from cluster.place import ModelFolder
from cluster.session import Cluster
from cluster.settings import Effective

IN_CONTAINER = "/opt/spark-lab/files"
_DTYPES = ("float32", "bfloat16", "float16")
_SWEEP = "a sweep is working with"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class Launcher:
    """sweeps.Hands by the launcher. `base`: the settings without an edit, as before the sweep; `was_running`: with them, before it."""

    base: Effective
    was_running: bool
    folders: Mapping[str, str] = field(default_factory=dict)
    checked: bool = False

    def place(self, directions: Sequence[Direction]) -> None:
        with session.opened(self.base) as cluster:
            self.folders = place.files(cluster, {each.file: each.content for each in directions})

    def boot(self, point: Point | None) -> Booted:
        effective = self.base if point is None or point.spec.is_null else self._edited(point)
        with session.opened(effective) as cluster:
            record = (lifecycle.up if point is None else lifecycle.restart)(cluster, _say)
            edits = _reports(cluster) if effective.settings.ablit else ()
        self.checked = self.checked or bool(edits)
        server = Server(record["base_url"], record["model"], effective.settings.vllm_api_key)
        image = (record.get("image") or {}).get("identity")
        return Booted(server, record["boot"], image, identity.system(record), edits)

    def _edited(self, point: Point) -> Effective:
        file = f"{_folder(self.base, self.folders)}/{point.direction.file}"
        return edited(self.base, point, file, selfcheck=not self.checked)

    def still(self, booted: Booted) -> bool:
        with session.opened(self.base) as cluster:
            record = cluster.head_record()
        return record is not None and record["boot"] == booted.boot

    def put_back(self) -> None:
        _say("putting the kit back: " + ("the settings from before the sweep" if self.was_running else "stopped, as before the sweep"))
        with session.opened(self.base) as cluster:
            if not self.was_running:
                lifecycle.down(cluster, _say)
                return
            record = cluster.head_record()
            same = record is not None and record["settings"] == self.base.fingerprint()
            (lifecycle.up if same else lifecycle.restart)(cluster, _say)


def _reports(cluster: Cluster) -> tuple[RankEdit, ...]:
    """What every rank's record says of the edit; the launcher has compared them already."""
    found = []
    for probe in cluster.certain_probes().values():
        found += [RankEdit.model_validate_json(json.dumps(each)) for each in (probe.record or {}).get("ablation", ())]
    return tuple(sorted(found, key=lambda edit: (edit.part, edit.rank)))


def _folder(base: Effective, folders: Mapping[str, str]) -> str:
    """Where a rank finds the files. Raises BadRequest when processes of different homes would look in different places."""
    if base.settings.runtime == "docker":
        return IN_CONTAINER
    if len(set(folders.values())) > 1:
        raise BadRequest(f"RUNTIME=process, and the nodes' homes differ: {', '.join(folders.values())}\ntry: one login name, or containers")
    return next(iter(folders.values()))


def edited(base: Effective, point: Point, file: str, *, selfcheck: bool) -> Effective:
    """The settings of a point: the base with the edit. Raises BadSettings for a combination that cannot work; touches nothing.

    The canary may answer anything: what an edit does to answers is what is measured. The plugin's selfcheck depends on the image and
    not on the point: the first edited start has it.
    """
    s = base.settings
    variables = {
        "ABLIT_METHOD": "proj",
        "ABLIT_LAYERS": spec.shown(point.spec.layers),
        "ABLIT_ALPHA": repr(point.spec.alpha),
        "ABLIT_DIRECTION": file,
    }
    words = [s.glm53_extra_env or "", *(shlex.quote(f"{name}={value}") for name, value in variables.items())]
    changed = {"ABLIT": "1", "GLM53_EXTRA_ENV": " ".join(words).strip(), "CANARY_EXPECT": ""}
    if s.runtime == "docker":
        mount = f"~/.local/state/spark-lab/{base.kit.name}/{place.FOLDER}:{IN_CONTAINER}:ro"
        changed["EXTRA_MOUNTS"] = f"{s.extra_mounts or ''} {mount}".strip()
    if not selfcheck:
        changed["SKIP_SELFCHECK"] = "1"
    found = settings.load({"kit": base.kit.name, **changed})
    constraints.check(found)
    fit.refuse(found)
    return found


# --- before anything is touched ---


def points(flags: Any, layers: Sequence[str], alphas: str, controls: str | None) -> int:
    """A served sweep or evaluation. Raises BadRequest and the launcher's errors."""
    base = _base(flags.kit)
    job = Job("points", asdict(flags))
    sides = tuple(side for side in held_out(job) if side)
    asked = Asked(sides, flags.behaviour, flags.reply_tokens, flags.windows, flags.top_k, flags.speed_runs)
    asked.refuse_unknown()
    folder = Path(flags.out)
    real = _direction(Path(flags.direction), folder)
    against_fit(job, sides, real.facts)
    if line := _unlike(base, real):
        _say(line)
    with state.lock(base.kit.name, "sweep", _SWEEP):
        found, running, start_s = _seen(base)
        grid = _grid(flags, layers, alphas, controls, found)
        sweep = sweeps.Sweep(kit_of(base, found), asked, sweeps.points_of(grid, real), windows.load().sha256, folder)
        _refuse_unfit(base, sweep, found)
        print("\n".join(sweeps.told(sweep, start_s)), file=sys.stderr)
        if flags.dry:
            return 0
        made = sweeps.run(sweep, Launcher(base, running), _say)
    print(table.markdown(pareto.rows(made)))
    return 0


def _unlike(base: Effective, real: Direction) -> str | None:
    """A served model's weights have no sha256 here, and a quantised copy has a repository of its own: what differs is said, not refused."""
    return None if base.settings.model.startswith("/") else directions.unlike(real, base.settings.model, base.settings.model_revision)


def _base(kit: str) -> Effective:
    """The kit's settings without an edit. Raises BadRequest for a kit that has none at load, or that is edited already."""
    base = settings.load({"kit": kit})
    if base.kit.engine != "vllm":
        what = f"kit {base.kit.name} is served by llama.cpp, which cannot edit weights as it loads them"
        raise BadRequest(f"{what}\ntry: leave out --kit: the same model is then edited and measured in process")
    if base.settings.ablit:
        source = base.sources["ablit"]
        raise BadRequest(f"{source}: ABLIT is 1, and a sweep compares with the unedited model\ntry: ABLIT=0; the sweep sets it itself")
    need = windows.POSITIONS + 2  # a window's tokens and one that is generated
    if base.settings.max_model_len < need:
        found = f"{base.sources['max_model_len']}: MAX_MODEL_LEN is {base.settings.max_model_len}"
        raise BadRequest(f"{found}, and a window of the KLD panel needs {need}\ntry: a larger MAX_MODEL_LEN")
    constraints.check(base)
    fit.refuse(base)
    return base


def _seen(base: Effective) -> tuple[ModelFolder, bool, float | None]:
    """The model on the head, whether the kit runs, and how long its last start took. Raises BadRequest when it runs with settings
    that this call does not know: they could not be put back."""
    with session.opened(base) as cluster:
        record = cluster.head_record()
        found = place.model(cluster)
    if record is None:
        return found, False, None
    differs = settings.difference(record["settings"], base.fingerprint())
    if differs:
        lines = "\n".join(["the kit runs with other settings than those of this call (running -> wanted)", *differs])
        raise BadRequest(f"{lines}\ntry: invoke restart, or invoke down; the sweep puts back the settings of its own call")
    return found, True, sum(record.get("boot_phases_s", {}).values()) or None


def _grid(flags: Any, layers: Sequence[str], alphas: str, controls: str | None, found: ModelFolder) -> Grid:
    text = found.text
    count = int(text["num_hidden_layers"]) + int(text.get("num_nextn_predict_layers") or 0)
    chosen, beside = strengths(alphas, controls)
    return Grid(tuple(spec.layers(each, count) for each in layers), chosen, beside, seeds=tuple(range(flags.control_seeds)))


def _refuse_unfit(base: Effective, sweep: sweeps.Sweep, found: ModelFolder) -> None:
    hidden = int(found.text["hidden_size"])
    for point in sweep.points:
        directions.refuse_unfit(point.direction, hidden, point.spec.layers, sweep.kit.model.name)
    edited(base, sweep.points[-1], f"{IN_CONTAINER}/x", selfcheck=True)


def kit_of(base: Effective, found: ModelFolder) -> Kit:
    """The kit as the receipts name it. The checkpoint's identity: source, revision, config.json, names and sizes of weight files."""
    s, text = base.settings, found.text
    source = str(identity.placeless(s.model))
    parts = [source, None if s.model.startswith("/") else s.model_revision, found.config, dict(found.sizes)]
    digest = hashlib.sha256(canonical(parts).encode()).hexdigest()
    layers, hidden = int(text["num_hidden_layers"]), int(text["hidden_size"])
    model = Model.model_validate({"name": source, "sha256": digest, "layers": layers, "hidden": hidden, "dtype": _dtype(base, text)})
    return Kit(base.kit.name, f"vllm in {s.image}", len(base.kit.nodes), base.fingerprint(), model)


def _dtype(base: Effective, text: Mapping[str, Any]) -> str:
    """In which the layers compute: --dtype of EXTRA_ARGS, else what the checkpoint says, else bfloat16."""
    words = shlex.split(base.settings.extra_args or "")
    given = [after for word, after in itertools.pairwise(words) if word == "--dtype"]
    said = given[-1] if given else str(text.get("dtype") or text.get("torch_dtype") or "")
    return said if said in _DTYPES else "bfloat16"


def _direction(path: Path, folder: Path) -> Direction:
    """The direction; the public recipe's .pt, which only torch reads, is converted once in the lab environment."""
    if path.suffix != ".pt":
        return directions.read(path)
    if not path.is_file():
        raise BadRequest(f"the direction file {path} is not there\ntry: invoke ablit.direction")
    from cli import lab_env

    out = folder / "work" / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:12]}.safetensors"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        flags = {"direction": str(path), "out": str(out)}
        if lab_env.run_in_lab("ablit", [json.dumps({"verb": "convert", "flags": flags})]):
            raise BadRequest(f"{path} could not be converted to safetensors\ntry: invoke ablit.direction")
    return directions.read(out)
