"""The settings file and the environment above it."""

from pathlib import Path

import pytest

from tidegate.cli.settings import Settings, SettingsInvalid, as_document, load_settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tidegate.toml"


def complaints(file: Path, text: str, environment: dict[str, str] | None = None) -> list[str]:
    file.write_text(text)
    with pytest.raises(SettingsInvalid) as refused:
        load_settings(file, environment or {})
    return refused.value.complaints


def test_without_a_file_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    settings = load_settings(None, {"HOME": "/", "TIDEGATE_CONFIG": ""})

    assert settings == Settings()
    assert settings.node.host == "127.0.0.1"
    assert settings.node.port == 7411
    assert settings.node.memory_bytes_max == 512 * 1024**2
    assert settings.node.lease_s == 3.0
    assert settings.node.message_bytes_max == 16 * 1024**2
    assert settings.node.frame_before_login_bytes_max == 8192
    assert settings.store.all_urls == []


def test_a_file_sets_what_it_names(file: Path) -> None:
    file.write_text(
        """
        [store]
        urls = ["postgresql://a/x", "postgresql://b/x"]
        data = "~/messages"
        [node]
        port = 0
        memory = "1GiB"
        lease = "500ms"
        [log]
        format = "json"
        """
    )

    settings = load_settings(file, {})

    assert settings.store.all_urls == ["postgresql://a/x", "postgresql://b/x"]
    assert settings.store.data_folder == Path("~/messages").expanduser()
    assert settings.node.port == 0
    assert settings.node.memory_bytes_max == 1024**3
    assert settings.node.lease_s == 0.5
    assert settings.node.heartbeat_s == 10.0
    assert settings.log.format == "json"


def test_a_file_in_the_current_folder_or_named_by_the_environment_is_found(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[node]\nport = 9")
    assert load_settings(None, {"TIDEGATE_CONFIG": str(file)}).node.port == 9
    monkeypatch.chdir(file.parent)
    assert load_settings(None, {}).node.port == 9


def test_the_environment_wins_over_the_file(file: Path) -> None:
    file.write_text('[node]\nport = 1\nhost = "there"')
    environment = {
        "TIDEGATE_NODE__PORT": "2",
        "TIDEGATE_NODE__MEMORY": "64MiB",
        "TIDEGATE_STORE__URLS": "postgresql://a/x, postgresql://b/x",
        "TIDEGATE_LOG__LEVEL": "debug",
    }

    settings = load_settings(file, environment)

    assert (settings.node.host, settings.node.port) == ("there", 2)
    assert settings.node.memory_bytes_max == 64 * 1024**2
    assert settings.store.all_urls == ["postgresql://a/x", "postgresql://b/x"]
    assert settings.log.level == "debug"


def test_what_is_not_set_by_default_can_be(file: Path) -> None:
    assert load_settings(None, {}).metrics.port is None
    environment = {"TIDEGATE_METRICS__PORT": "0", "TIDEGATE_METRICS__ENABLED": "false"}

    metrics = load_settings(None, environment).metrics

    assert (metrics.port, metrics.enabled, metrics.host) == (0, False, "127.0.0.1")


def test_telemetry_lies_beside_the_data_unless_told_otherwise() -> None:
    assert load_settings(None, {"TIDEGATE_STORE__DATA": "/data/x"}).lake == "/data/x/lake"
    environment = {
        "TIDEGATE_TELEMETRY__LAKE": "s3://bucket/lake",
        "TIDEGATE_TELEMETRY__RETENTION": "7d",
        "TIDEGATE_TELEMETRY__LIFECYCLES_PER_S": "0",
    }
    settings = load_settings(None, environment)
    chosen = settings.telemetry
    assert (settings.lake, chosen.retention_s) == ("s3://bucket/lake", 7 * 86_400)
    assert (chosen.enabled, chosen.lifecycles_per_s, chosen.interval_s) == (True, 0, 1.0)


def test_an_interval_that_nobody_could_keep_is_refused(file: Path) -> None:
    assert complaints(file, '[telemetry]\ninterval = "1ms"') == [
        f"{file}: telemetry.interval = '1ms': must be a duration: a number and one of us, ms, s, "
        "m, h, d, such as 250ms or 30s, from 100ms to 1m"
    ]


def test_an_unknown_key_is_named_with_the_one_that_was_meant(file: Path) -> None:
    assert complaints(file, "[node]\nprot = 1") == [
        f"{file}: node.prot: there is no such key, did you mean port?"
    ]


def test_an_unknown_section_is_named_with_the_ones_there_are(file: Path) -> None:
    assert complaints(file, "[brokers]\nport = 1") == [
        f"{file}: brokers: there is no such section; there are log, metrics, node, pipeline, "
        "spark, store, telemetry, tls"
    ]
    assert "did you mean node?" in complaints(file, "[nodes]\nport = 1")[0]


@pytest.mark.parametrize(
    ("line", "key", "value", "allowed"),
    [
        ("[node]\nport = 70000", "node.port", "70000", "a whole number, from 0 to 65535"),
        ('[node]\nport = "7411"', "node.port", "'7411'", "a whole number"),
        ("[node]\nport = true", "node.port", "True", "a whole number"),
        ('[node]\nlease = "3"', "node.lease", "'3'", "a duration"),
        ("[node]\nlease = 3", "node.lease", "3", "a duration"),
        ('[node]\nlease = "1ms"', "node.lease", "'1ms'", "from 200ms to 1h"),
        ('[node]\nmemory = "lots"', "node.memory", "'lots'", "a size"),
        ('[node]\nmemory = "1KiB"', "node.memory", "'1KiB'", "from 16MiB to 1TiB"),
        ('[log]\nlevel = "loud"', "log.level", "'loud'", "one of debug, info, warning, error"),
        ('[store]\nurls = "x"', "store.urls", "'x'", "a list of texts"),
        ("[store]\nurl = 3", "store.url", "3", "a text"),
        ("[metrics]\nport = 70000", "metrics.port", "70000", "a whole number, from 0 to 65535"),
        ("[metrics]\nenabled = 1", "metrics.enabled", "1", "true or false"),
    ],
)
def test_a_bad_value_names_file_key_value_and_what_is_allowed(
    file: Path, line: str, key: str, value: str, allowed: str
) -> None:
    (complaint,) = complaints(file, line)
    assert complaint.startswith(f"{file}: {key} = {value}: must be ")
    assert allowed in complaint


def test_a_bad_environment_variable_is_named(file: Path) -> None:
    environment = {"TIDEGATE_NODE__PORT": "many", "TIDEGATE_NODE__LAESE": "3s"}

    assert complaints(file, "", environment) == [
        "environment TIDEGATE_NODE__LAESE: node.laese: there is no such key, did you mean lease?",
        "environment TIDEGATE_NODE__PORT: node.port = 'many': must be a whole number, "
        "from 0 to 65535",
    ]


def test_all_complaints_come_at_once(file: Path) -> None:
    assert len(complaints(file, 'store = 1\n[node]\nport = -1\nlease = "x"\nx = 1')) == 4


def test_one_store_url_or_several_but_not_both(file: Path) -> None:
    (complaint,) = complaints(file, '[store]\nurl = "a"\nurls = ["b"]')
    assert "store.url and store.urls" in complaint


def test_a_file_that_is_not_there_or_not_toml_is_named(file: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"tidegate\.toml: cannot be read: No such file"):
        load_settings(file, {})
    assert "is not TOML" in complaints(file, "port: 7411")[0]


def test_a_password_is_not_repeated_in_a_complaint(file: Path) -> None:
    (complaint,) = complaints(file, '[store]\nurl = ["postgresql://me:hunter2@there/x"]')
    assert "hunter2" not in complaint
    assert "there/x" in complaint


def test_properties_of_spark_are_whatever_spark_knows(file: Path) -> None:
    file.write_text(
        "[spark]\n"
        'master = "spark://cluster:7077"\n'
        '"spark.executor.memory" = "4g"\n'
        "spark.sql.shuffle.partitions = 64\n"
        "spark.ui.enabled = true\n"
        'spark.hadoop.fs.s3a.secret.key = "hush"\n'
    )

    settings = load_settings(file, {})

    assert settings.spark.master == "spark://cluster:7077"
    assert settings.spark.properties == {
        "spark.executor.memory": "4g",
        "spark.sql.shuffle.partitions": "64",
        "spark.ui.enabled": "true",
        "spark.hadoop.fs.s3a.secret.key": "hush",
    }
    shown = as_document(settings)["spark"]
    assert shown["spark.executor.memory"] == "4g"
    assert "hush" not in str(shown)


def test_what_is_no_property_of_spark_is_refused(file: Path) -> None:
    (complaint,) = complaints(file, "[spark]\nmastr = 'local'")
    assert "did you mean master?" in complaint
    (complaint,) = complaints(file, "[spark]\nspark.jars = ['a.jar']")
    assert "spark.spark.jars = ['a.jar']: must be a text, a number, true or false" in complaint
