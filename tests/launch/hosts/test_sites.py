import pytest

from torchloom.launch.hosts.sites import NOWHERE, BadSite, NoiseFilter, Site, find_site, read_sites

MINE = """
[mine]
match = { hosts = 'gpu\\d+' , env = { CLUSTER = 'blue|red' } }
gpus_per_host = 2
cpu_bind = "list:0-7:8-15"
address = "{host}-ib"
modules = ["cuda", "nccl"]
flags = ["--exclusive"]
env = { NCCL_SOCKET_IFNAME = "ib0" }
noise = ['WARN: .*']
"""


@pytest.mark.parametrize(
    ("host", "env", "name"),
    [
        ("x4102c5s2b0n0", {}, "aurora"),
        ("x1921c3s4b0n0.hostmgmt2000.cm.sunspot.alcf.anl.gov", {}, "sunspot"),
        ("x3004c0s1b0n0", {}, "polaris"),
        ("nid001234", {"NERSC_HOST": "perlmutter"}, "perlmutter"),
        ("nid001234", {}, ""),
        ("login01", {}, ""),
        ("x3-laptop", {}, ""),
        ("frontier00001", {"LMOD_SYSTEM_NAME": "frontier"}, "frontier"),
        ("laptop", {}, ""),
    ],
)
def test_a_known_site_is_found_and_no_other_host_is_taken_for_it(
    host: str, env: dict[str, str], name: str
) -> None:
    assert find_site(read_sites([]), host, env).name == name


def test_no_built_in_site_loads_modules_before_the_users_own_choice() -> None:
    assert {site.name: site.modules for site in read_sites([]) if site.modules} == {}


def test_a_table_of_the_users_adds_a_site() -> None:
    sites = read_sites([MINE])

    assert find_site(sites, "gpu7", {"CLUSTER": "red"}) == Site(
        "mine",
        r"gpu\d+",
        {"CLUSTER": "blue|red"},
        gpus_per_host=2,
        cpu_bind="list:0-7:8-15",
        address="{host}-ib",
        modules=("cuda", "nccl"),
        flags=("--exclusive",),
        env={"NCCL_SOCKET_IFNAME": "ib0"},
        noise=("WARN: .*",),
    )
    assert find_site(sites, "gpu7", {"CLUSTER": "green"}) == NOWHERE


def test_a_table_of_the_users_replaces_a_built_in_site() -> None:
    sites = read_sites(["[aurora]\ncpu_bind = 'none'\nmatch = { hosts = 'x4.*' }\n"])

    assert find_site(sites, "x4102c5s2b0n0", {}) == Site("aurora", "x4.*", cpu_bind="none")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a\n", "the table is not TOML"),
        ("a = 1\n", "site 'a': it must be a table"),
        ("[a]\ncpubind = 'x'\n", "unknown field 'cpubind'"),
        ("[a]\nmatch = { host = 'x' }\n", "unknown field 'host'"),
        ("[a]\nmodules = 'x'\n", "modules must be a list, not 'x'"),
        ("[a]\nnoise = ['(']\n", "is not a regular expression"),
        ("[a]\nmatch = { hosts = '[' }\n", "is not a regular expression"),
        ("[a]\nmatch = 'x'\n", "match must be a table"),
        ("[a]\nmatch = { hosts = 3 }\n", "match must contain strings"),
        ("[a]\nmatch = { env = { A = 3 } }\n", "match must contain strings"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadSite) as raised:
        read_sites([text])

    assert why in str(raised.value)


def test_noise_is_hidden_and_counted() -> None:
    noise = NoiseFilter([r"WARN: .*", r"\d+ retries"], "mine")
    lines = [b"WARN: \xff\r\n", b"loss 1\n", b"3 retries", b"see WARN: b"]

    kept = [line for line in lines if noise.keeps(line)]

    assert kept == [b"loss 1\n", b"see WARN: b"]
    note = "2 lines of known noise hidden (site mine); the logs have all"
    assert (noise.hidden, noise.note) == (2, note)


def test_without_noise_nothing_is_hidden_or_said() -> None:
    noise = NoiseFilter([])

    assert noise.keeps(b"WARN")
    assert noise.note == ""


def test_the_sites_own_noise_is_hidden_and_no_training_line() -> None:
    noise = NoiseFilter(find_site(read_sites([]), "x4102c5s2b0n0", {}).noise)

    assert not noise.keeps(b"2025:03:01-10:11:12:(4711) |CCL_WARN| value of CCL_X changed")
    assert noise.keeps(b"step 3 |CCL_WARN| loss 1.0")
