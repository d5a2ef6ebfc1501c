"""The settings file and the environment above it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.app import app
from tidegate.cli.settings import Settings, SettingsInvalid, as_document, load_settings
from tidegate.core.topology import ScalingPolicy


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


def test_environment_sets_keys_without_a_default(file: Path) -> None:
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
        f"{file}: brokers: there is no such section; there are alerts, console, fleet, log, "
        "metrics, node, pipeline, queues, spark, store, telemetry, tls"
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


def test_a_complaint_about_several_keys_names_all_their_sources(file: Path) -> None:
    environment = {"TIDEGATE_STORE__URL": "a", "TIDEGATE_STORE__URLS": "b"}
    assert complaints(file, '[store]\ndata = "c"', environment) == [
        "environment TIDEGATE_STORE__URL, environment TIDEGATE_STORE__URLS: store.url and "
        "store.urls are both set: use one of them"
    ]
    environment = {"TIDEGATE_QUEUES__ORDERS__MAX_WIAT": "2s"}
    assert complaints(file, "[queues.orders]\nmin_load = 1", environment) == [
        f"{file}, environment TIDEGATE_QUEUES__ORDERS__MAX_WIAT: queues.orders: max_wiat: there is "
        "no such key, did you mean max_wait?"
    ]


def test_settings_refuse_store_url_together_with_urls(file: Path) -> None:
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


def test_settings_refuse_unknown_spark_properties(file: Path) -> None:
    (complaint,) = complaints(file, "[spark]\nmastr = 'local'")
    assert "did you mean master?" in complaint
    (complaint,) = complaints(file, "[spark]\nspark.jars = ['a.jar']")
    assert "spark.spark.jars = ['a.jar']: must be a text, a number, true or false" in complaint


def test_a_fleet_and_queues_that_scale_are_read_from_the_file(file: Path) -> None:
    file.write_text(
        """
        [fleet]
        provider = "command"
        boot = "ssh {host} tidegate-machine start {id} {slots}"
        halt = "ssh {host} tidegate-machine stop {id}"
        list = "sh -c 'cat {{machines,hosts}}.txt'"
        boot_deadline = "10m"
        slots = 2
        hosts = ["blue", "green"]
        warm = 1
        [queues.orders]
        replicas = { min = 1, max = 8 }
        policy = "feed-forward"
        max_wait = "2s"
        worker = "shop.jobs:app"
        cooldown_period = "60s"
        [queues."mails.eu"]
        slots_per_machine = 1
        """
    )

    settings = load_settings(file, {})

    fleet = settings.fleet
    assert (fleet.provider, fleet.slots, fleet.hosts) == ("command", 2, ["blue", "green"])
    assert fleet.boot_deadline_s == 600.0
    orders, mails = settings.queues["orders"], settings.queues["mails.eu"]
    assert (orders.replicas.min, orders.replicas.max, orders.max_wait_s) == (1, 8, 2.0)
    assert orders.policy is ScalingPolicy.FEED_FORWARD
    assert (orders.slots_per_machine, mails.slots_per_machine) == (2, 1), "the fleet's, or its own"
    assert (orders.warm, mails.warm) == (1, 1)


def test_the_agreement_of_a_queue_stands_in_a_file_beside_the_settings(file: Path) -> None:
    agreed = file.parent / "orders.toml"
    promise = 'name = "shop"\nqueue = "orders"\n[metrics.wait_p99]\nbreach = "6s"\n'
    agreed.write_text("replicas = { min = 2, max = 4 }\n" + promise)
    section = '[queues.orders]\npolicy = "agreement"\nagreement = "orders.toml"\n'
    file.write_text(section)

    orders = load_settings(file, {}).queues["orders"]

    assert orders.agreement == agreed.read_text()
    assert (orders.replicas.min, orders.replicas.max) == (2, 4)
    file.write_text(section + "replicas = { min = 1, max = 9 }\n")
    assert load_settings(file, {}).queues["orders"].replicas.max == 9, "said of the queue itself"
    agreed.write_text(promise.replace("6s", "soon"))
    [found] = complaints(file, section)
    assert found.startswith(f"{file}: queues.orders: {agreed}:4: metrics.wait_p99.breach = 'soon'")
    [found] = complaints(file, '[queues.bills]\nagreement = "none.toml"')
    assert "cannot be read" in found


def test_the_environment_speaks_of_fleet_and_queues_too(file: Path) -> None:
    file.write_text("[queues.Orders]\nreplicas = { min = 1, max = 2 }")
    environment = {
        "TIDEGATE_FLEET__PROVIDER": "process",
        "TIDEGATE_FLEET__BOOT_S": "96.9",
        "TIDEGATE_QUEUES__ORDERS__MAX": "5",
        "TIDEGATE_QUEUES__ORDERS__MAX_WAIT": "250ms",
        "TIDEGATE_QUEUES__MAILS__WORKER": "shop:app",
    }

    settings = load_settings(file, environment)

    assert (settings.fleet.provider, settings.fleet.boot_s) == ("process", 96.9)
    assert set(settings.queues) == {"Orders", "mails"}, "a queue of the file keeps its name"
    orders = settings.queues["Orders"]
    assert (orders.replicas.min, orders.replicas.max, orders.max_wait_s) == (1, 5, 0.25)
    assert settings.queues["mails"].worker == "shop:app"


def test_settings_explain_each_invalid_fleet_and_queue_key(file: Path) -> None:
    found = complaints(
        file,
        """
        [fleet]
        provider = "command"
        boot = "ssh {hots} boot {id}"
        boot_s = -1.0
        [queues]
        mails = 3
        [queues.orders]
        replicas = { min = 4, max = 2 }
        min_load = 300
        [queues.bills]
        max_wiat = "2s"
        """,
    )

    assert found == [
        f"{file}: fleet.boot = 'ssh {{hots}} boot {{id}}': {{hots}} is no placeholder, did you "
        "mean host? (a brace that stands for itself is written twice)",
        f"{file}: fleet.boot_s = -1.0: must be a number, from 0 to 86400",
        f"{file}: queues.mails = 3: must be a section, written [queues.mails]",
        f'{file}: fleet.halt is not set: with provider = "command" it is the command that ends '
        "machine {id}",
        f"{file}: "
        'fleet.list is not set: with provider = "command" it is the command that prints the '
        "machines that there are",
        f"{file}: "
        "queues.orders: replicas min 4, max 2: must be 0 ≤ min ≤ max; min_load 300, max_load 200: "
        "must be 0 ≤ min_load < max_load, both finite",
        f"{file}: queues.bills: max_wiat: there is no such key, did you mean max_wait?",
    ]


def test_a_command_that_nobody_runs_is_refused(file: Path) -> None:
    assert complaints(file, '[fleet]\nboot = "start {id}"') == [
        f'{file}: fleet.boot is set, but nobody runs it: set fleet.provider = "command"'
    ]


def test_stores_of_the_environment_stand_instead_of_the_files(file: Path) -> None:
    file.write_text('[store]\nurls = ["postgresql://a/x", "postgresql://b/x"]')
    settings = load_settings(file, {"TIDEGATE_STORE__URL": "postgresql://c/x"})
    assert settings.store.all_urls == ["postgresql://c/x"]


def test_shown_queue_settings_can_be_read_again(file: Path) -> None:
    file.write_text('[queues."a b"]\nmax_wait = "2s"\nworker = "shop:app"')
    before = load_settings(file, {})

    shown = [line for line in _shown(file) if not line.startswith("#")]
    file.write_text("\n".join(shown[shown.index('[queues."a b"]') :]))

    assert load_settings(file, {}).queues == before.queues


def _shown(file: Path) -> list[str]:
    result = CliRunner().invoke(app, ["config", "--config", str(file)])
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_names_that_no_queue_can_have_are_refused(file: Path) -> None:
    assert complaints(file, '[queues."orders#1"]\n[queues.""]\n[queues."#7"]') == [
        f"{file}: "
        "queues.orders#1: a queue's name cannot end in # and digits: 'orders#1' would be a replica "
        "of 'orders'",
        f"{file}: queues.'': a name must not be empty",
        f"{file}: queues.#7: a name cannot begin with #: #7 means the one with id 7",
    ]


def test_commands_that_do_not_say_which_machine_are_refused(file: Path) -> None:
    text = """
        [fleet]
        provider = "command"
        boot = "start --slots {slots}"
        halt = "stop everything"
        list = "inventory"
        lost = "0s"
    """
    assert complaints(file, text) == [
        f"{file}: fleet.lost = '0s': must be a duration: a number and one of us, ms, s, m, h, d, "
        "such as 250ms or 30s, from 100ms to 1h",
        f"{file}: fleet.boot = 'start --slots {{slots}}': {{id}} is missing: without it the "
        "command does not know which machine it boots",
        f"{file}: "
        f"fleet.halt = 'stop everything': {{id}} is missing: without it the command does not know "
        "which machine it ends",
    ]


def test_a_section_of_a_queue_says_what_its_prefetch_is_steered_to(file: Path) -> None:
    file.write_text(
        """
        [queues.orders]
        prefetch = "400/s"
        [queues.invoices]
        prefetch = { rate = "keep-up", settle = "20s", overshoot = "2%", high = 50 }
        max_load = 80
        """
    )

    settings = load_settings(file, {})

    orders, invoices = settings.prefetch_goals["orders"], settings.prefetch_goals["invoices"]
    assert (orders.rate_per_s, orders.settle_s) == (400.0, 30.0)
    assert (invoices.rate_per_s, invoices.settle_s, invoices.high) == (None, 20.0, 50)
    assert invoices.overshoot == pytest.approx(0.02)
    # One that says nothing else does not scale.
    assert list(settings.queues) == ["invoices"]
    assert as_document(settings)["queues.orders"]["prefetch"]["rate"] == "400/s"


@pytest.mark.parametrize(
    ("prefetch", "complaint"),
    [
        ('"fast"', "must be a rate such as 400/s"),
        ('"0/s"', "above 0"),
        ("true", "must be"),
        ("{ rate = 400 }", "prefetch.rate = 400"),
        ('{ pace = "4/s" }', "there is no such key"),
        ('{ rate = "4/s", high = 0 }', "the lower one first"),
        ('{ model = "nonesuch.json" }', "nonesuch.json"),
    ],
)
def test_a_goal_that_makes_no_sense_is_a_complaint(
    file: Path, prefetch: str, complaint: str
) -> None:
    [found] = complaints(file, f"[queues.orders]\nprefetch = {prefetch}")
    assert found.startswith(f"{file}: queues.orders: ")
    assert complaint in found


def test_alerts_go_where_the_settings_say_and_an_address_that_is_none_is_refused() -> None:
    found = load_settings(
        None,
        {"TIDEGATE_ALERTS__WEBHOOK": "http://127.0.0.1:9/hook", "TIDEGATE_ALERTS__TIMEOUT": "2s"},
    )
    assert (found.alerts.webhook, found.alerts.timeout_s) == ("http://127.0.0.1:9/hook", 2.0)

    with pytest.raises(SettingsInvalid, match=r"alerts\.webhook: 'ftp://nowhere' is no address"):
        load_settings(None, {"TIDEGATE_ALERTS__WEBHOOK": "ftp://nowhere"})
