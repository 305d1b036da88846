"""Settings: which source wins, what is refused and how it is said, and that no secret gets out."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import kits, settings
from cluster.errors import BadSettings
from cluster.fields import AllSettings
from cluster.settings import Effective

SECRET = "hunter2-and-more"
Load = Callable[..., Effective]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """settings.load with a `.env` of this text (None: no file) and nothing from the real environment."""

    def _load(env_file: str | None = None, environ: dict[str, str] | None = None, **flags: str | None) -> Effective:
        path = tmp_path / ".env"
        if env_file is not None:
            path.write_text(env_file)
        return settings.load(flags, environ or {}, path)

    return _load


@pytest.fixture
def kit_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty kits/ folder in place of the repository's."""
    folder = tmp_path / "kits"
    folder.mkdir()
    monkeypatch.setattr(kits, "FOLDER", folder)
    return folder


def write_kit(folder: Path, name: str, lines: str = "") -> None:
    head = f'name = "{name}"\nsummary = "for a test"\nengine = "llama"\nhardware = "cpu"\ntopology = "single"\n'
    text = f'{head}nodes = ["local"]\n[settings]\n{lines}'
    (folder / f"{name}.toml").write_text(text)


def test_every_source_wins_over_the_ones_before_it(load: Load, kit_folder: Path) -> None:
    write_kit(kit_folder, "local")
    seen = [load()]
    write_kit(kit_folder, "local", "PORT = 8001")
    seen.append(load())
    seen.append(load("# mine\nPORT=8002"))
    seen.append(load(environ={"PORT": "8003"}))
    seen.append(load(environ={"PORT": "8003"}, port="8004"))
    assert [(e.settings.port, e.sources["port"]) for e in seen] == [
        (8888, "default"),
        (8001, "kit local"),
        (8002, ".env line 2"),
        (8003, "environment"),
        (8004, "flag --port"),
    ]


def test_sources_are_told_apart_within_one_call(load: Load) -> None:
    effective = load("MAX_MODEL_LEN=512", {"THREADS": "2", "SHELL": "/bin/sh"}, ngram_match="3", port=None)
    told = {name: effective.sources[name] for name in ("max_model_len", "threads", "ngram_match", "port", "ngram_tokens")}
    assert told == {
        "max_model_len": ".env line 1",
        "threads": "environment",
        "ngram_match": "flag --ngram-match",
        "port": "kit local",
        "ngram_tokens": "default",
    }
    assert set(effective.sources) == set(AllSettings.model_fields)


def test_values_of_the_local_kit(load: Load) -> None:
    assert load().settings == AllSettings(
        port=8808, runtime="process", served_model_name="SmolLM2-135M-Instruct", max_num_seqs=1, spec_method="ngram", ready_timeout=120
    )


def test_env_file_may_use_the_environment(load: Load) -> None:
    assert load("SERVED_MODEL_NAME=m-$WHO", {"WHO": "me"}).settings.served_model_name == "m-me"


def test_default_folder_is_the_repository() -> None:
    assert Path(settings.ROOT, "pyproject.toml").is_file()
    assert Path(settings.ROOT, "kits") == kits.FOLDER


UNKNOWN = {
    "near": ("PROT=1", r"\.env line 1: unknown setting PROT\n.*did you mean PORT\?"),
    "lower case": ("\nport=1", r"\.env line 2: unknown setting port\n"),
    "far": ("ZZZ=1", r"unknown setting ZZZ\n.*invoke config lists every setting"),
}


@pytest.mark.parametrize(("text", "message"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_name_in_env_file(load: Load, text: str, message: str) -> None:
    with pytest.raises(BadSettings, match=message):
        load(text)


def test_unknown_name_in_kit(load: Load, kit_folder: Path) -> None:
    write_kit(kit_folder, "local", "MAX_SEQS = 1")
    with pytest.raises(BadSettings, match=r"^kits/local\.toml: unknown setting MAX_SEQS\n.*did you mean MAX_NUM_SEQS\?"):
        load()


BAD = {
    "PORT": ["", "0", "65536", "80a", "8808.5", "-1"],
    "HOST": [""],
    "SERVED_MODEL_NAME": [""],
    "MAX_MODEL_LEN": ["255", "1000001", "8k"],
    "MAX_NUM_SEQS": ["0", "4097"],
    "SPEC_METHOD": ["", "Ngram", "eagle"],
    "NGRAM_TOKENS": ["0", "49"],
    "NGRAM_MATCH": ["0", "33"],
    "THREADS": ["0", "257", "two"],
    "READY_TIMEOUT": ["0", "-1", "nan", "inf", "soon"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_value_names_source_name_and_value(load: Load, name: str, value: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load(environ={name: value})
    shown = f"environment: {name} is " + ("empty" if value == "" else f"'{value}': ")
    assert str(caught.value).startswith(shown)


def test_several_bad_values_in_one_message(load: Load) -> None:
    with pytest.raises(BadSettings) as caught:
        load("THREADS=none\nMAX_NUM_SEQS=0", {"PORT": "99999"}, spec_method="magic")
    heads = [line.partition(": Input")[0] for line in str(caught.value).splitlines()]
    assert sorted(heads) == [
        ".env line 1: THREADS is 'none'",
        ".env line 2: MAX_NUM_SEQS is '0'",
        "environment: PORT is '99999'",
        "flag --spec-method: SPEC_METHOD is 'magic'",
    ]


def test_bad_value_in_kit(load: Load, kit_folder: Path) -> None:
    write_kit(kit_folder, "local", "PORT = 0")
    with pytest.raises(BadSettings, match=r"^kit local: PORT is 0: "):
        load()


def test_bad_value_that_a_later_source_replaces_does_not_matter(load: Load) -> None:
    assert load("PORT=0", {"PORT": "8003"}).settings.port == 8003


def test_empty_means_not_set_where_a_setting_may_be_none(load: Load) -> None:
    assert load(f"VLLM_API_KEY={SECRET}").settings.vllm_api_key == SECRET
    emptied = load(environ={"VLLM_API_KEY": ""})
    assert (emptied.settings.vllm_api_key, emptied.sources["vllm_api_key"]) == (None, "environment")


def test_secret_is_masked(load: Load) -> None:
    effective = load(f"VLLM_API_KEY={SECRET}")
    assert effective.public()["vllm_api_key"] == "***"
    assert json.loads(settings.as_json(effective))["VLLM_API_KEY"]["value"] == "***"
    assert SECRET not in settings.as_json(effective) + str(effective.public()) + str(effective.fingerprint())
    assert load("").public()["vllm_api_key"] is None


@pytest.mark.parametrize(
    "line", [f"VLLM_API_KEY = {SECRET}", f"VLLM_API_KEY='{SECRET}'x", f"VLLM_API_KEY={SECRET}'", f"VLLM_API_KEYS={SECRET}"]
)
def test_secret_is_in_no_message(load: Load, line: str) -> None:
    with pytest.raises(BadSettings) as caught:
        load(line)
    assert SECRET not in str(caught.value)


def test_bad_secret_is_masked_in_the_message(load: Load, kit_folder: Path) -> None:
    write_kit(kit_folder, "local", "VLLM_API_KEY = 20261129")
    with pytest.raises(BadSettings, match=r"^kit local: VLLM_API_KEY is \*\*\*: ") as caught:
        load()
    assert "20261129" not in str(caught.value)


def test_fingerprint_tells_configurations_apart(load: Load) -> None:
    one, same, slower, keyed, other = (
        load("").fingerprint(),
        load("", {"SPEC_METHOD": "ngram"}).fingerprint(),
        load("", {"READY_TIMEOUT": "9"}).fingerprint(),
        load("", {"VLLM_API_KEY": "k1"}).fingerprint(),
        load("", {"VLLM_API_KEY": "k2", "SPEC_METHOD": "none"}).fingerprint(),
    )
    assert one == same == slower
    assert settings.difference(one, other)[0] == "SPEC_METHOD: ngram -> none"
    # sha256 of k1 and of k2, the first 12 digits
    assert settings.difference(keyed, other)[1] == "VLLM_API_KEY: sha256:6ab9f1eb8f7d -> sha256:015f7e6bc5ae"


def test_difference_names_what_only_one_side_has() -> None:
    assert settings.difference({"a": 1, "b": 2}, {"b": 2, "c": 3}) == ["A: 1 -> None", "C: None -> 3"]


KIT_CHOICE = {
    "default": (None, {}, None, "local"),
    ".env": ("KIT=one", {}, None, "one"),
    "environment": ("KIT=one", {"KIT": "two"}, None, "two"),
    "flag": ("KIT=one", {"KIT": "two"}, "three", "three"),
}


@pytest.mark.parametrize(("text", "environ", "flag", "chosen"), KIT_CHOICE.values(), ids=KIT_CHOICE)
def test_kit_choice(load: Load, kit_folder: Path, text: str, environ: dict[str, str], flag: str, chosen: str) -> None:
    for number, name in enumerate(("local", "one", "two", "three")):
        write_kit(kit_folder, name, f"PORT = {8000 + number}")
    effective = load(text, environ, kit=flag)
    assert (effective.kit.name, effective.settings.kit, effective.sources["port"]) == (chosen, chosen, f"kit {chosen}")


@pytest.mark.parametrize("name", ["spark9", "../local", "local.toml"])
def test_unknown_kit(load: Load, name: str) -> None:
    with pytest.raises(BadSettings, match=re.escape(f"KIT is '{name}'; known kits: ") + ".*local"):
        load(kit=name)


@pytest.mark.parametrize("text", ["name = ", 'name = "local"', 'colour = "red"'], ids=["no TOML", "fields missing", "unknown field"])
def test_malformed_kit(load: Load, kit_folder: Path, text: str) -> None:
    (kit_folder / "local.toml").write_text(text)
    with pytest.raises(BadSettings, match=r"^kits/local\.toml is malformed: "):
        load()


@pytest.mark.parametrize("name", kits.names())
def test_every_kit_of_the_repository_loads(load: Load, name: str) -> None:
    assert load(kit=name).kit.name == name


def test_env_file_that_is_not_text(load: Load, tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"HOST=\xff\xfe")
    with pytest.raises(BadSettings, match=r"^cannot read \.env: "):
        load()


def test_committed_example_is_the_generated_one() -> None:
    assert Path(settings.ROOT, ".env.example").read_text() == settings.example()


def test_example_holds_the_defaults(load: Load) -> None:
    """With the # of every setting taken away it loads, and is what the settings are without a kit."""
    text = re.sub(r"^#([A-Z0-9_]+=)", r"\1", settings.example(), flags=re.MULTILINE)
    effective = load(text)
    assert effective.settings == AllSettings()
    assert all(source.startswith(".env line ") for source in effective.sources.values())


def test_every_setting_has_a_meaning_and_is_listed(load: Load) -> None:
    listed = json.loads(settings.as_json(load()))
    assert list(listed) == [name.upper() for name in AllSettings.model_fields]
    assert all(len(row["meaning"]) > 10 and row["source"] for row in listed.values())


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in settings.NAMES.keys() & os.environ.keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("PORT", "8123")
    assert settings.load(path=tmp_path / "none").settings.port == 8123
