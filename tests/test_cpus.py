"""The table of `make test-cpus`."""

import pytest

import cpus


def test_cpus_are_told_what_they_lack():
    told = {f"{name}={value}" for cpu in cpus.CPUS for name, value in cpu.settings.items()}
    assert told >= {"ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "MKL_CBWR=COMPATIBLE"}
    assert told >= {f"ONEDNN_MAX_CPU_ISA={isa}" for isa in ("SSE41", "AVX2", "AVX512_CORE")}
    assert told >= {f"MKL_ENABLE_INSTRUCTIONS={set_}" for set_ in ("SSE4_2", "AVX2")}
    assert {cpu.threads for cpu in cpus.CPUS} == {1, 2}
    assert any("--rounding" in cpu.arguments for cpu in cpus.CPUS)
    assert any(cpu.settings.keys() == {"ATEN_CPU_CAPABILITY"} for cpu in cpus.CPUS), "libraries also disagree"


def test_the_table_shows_which_tests_failed_on_which_cpu(tmp_path, capsys):
    """The first CPU has vectors and two threads; the second has threads only."""
    (tmp_path / "test_told.py").write_text(
        "import os\n"
        "def test_instructions(): assert os.environ.get('ATEN_CPU_CAPABILITY') != 'default'\n"
        "def test_threads(): assert os.environ['OMP_NUM_THREADS'] == '2'\n"
    )
    alone = ["-c", "/dev/null", "-p", "no:cacheprovider", str(tmp_path)]
    assert cpus.main(["--only", "AVX2, two threads", "--", *alone]) == 0
    assert "AVX2, two threads  passed" in capsys.readouterr().out
    assert cpus.main(["--only", "torch without", "--", *alone]) == 1
    printed = capsys.readouterr().out
    assert "torch without vectors, two threads  FAILED" in printed and "1 failed, 1 passed" in printed
    where = printed.splitlines()[-1]
    assert where.startswith("torch without vectors") and where.endswith("test_told.py::test_instructions")


def test_a_cpu_that_is_not_in_the_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        cpus.main(["--only", "Z80"])
    assert "--only 'Z80' matches none of: SSE, AVX2" in capsys.readouterr().err
