"""`covist serve` before it serves."""

import socket
from dataclasses import fields

import pytest

from covist.cli.options import with_ray_address
from covist.serve.limits import Limits


def test_every_limit_is_an_option(covist, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = covist("serve", "--help").stdout
    for one in fields(Limits):
        assert f"--{one.name.replace('_', '-')}" in shown


def test_a_limit_that_is_none_is_refused(covist):
    ran = covist("serve", "--images", "-1")
    assert ran.code == 2 and "--images must be at least 0, got -1" in ran.stderr


def test_without_the_extra_one_line_says_what_to_install(covist, monkeypatch):
    monkeypatch.setattr("covist.extras.find_spec", lambda name: None if name == "uvicorn" else object())
    ran = covist("serve")
    assert ran.code == 2
    assert ran.stderr == "covist: covist serve needs uvicorn: pip install 'covist[serve]'\n"


def test_bad_files_are_refused_before_a_model_is_loaded(covist, tmp_path):
    (tmp_path / "config.json").write_text('{"nonsense": 1}')
    for option, words in (("--config", "nonsense"), ("--api-key-file", "has no key")):
        (tmp_path / "keys").write_text("")
        path = tmp_path / ("config.json" if option == "--config" else "keys")
        ran = covist("serve", option, path, "--model", "nowhere/nothing")
        assert ran.code == 2 and words in ran.stderr and "nowhere" not in ran.stderr


def test_a_port_that_is_taken_is_reported_before_a_model_is_loaded(covist):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = covist("serve", "--port", port, "--model", "nowhere/nothing")
    assert ran.code == 2
    assert ran.stderr.startswith(f"covist: cannot listen on 127.0.0.1, port {port} (Address already in use)")


def test_without_gradio_one_line_says_what_to_install(covist, monkeypatch):
    monkeypatch.setattr("covist.extras.find_spec", lambda name: None if name == "gradio" else object())
    ran = covist("serve", "--page")
    assert ran.code == 2
    assert ran.stderr == "covist: covist serve --page needs gradio: pip install 'covist[page]'\n"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (("--replicas", 2), "--replicas needs --ray"),
        (("--autoscale", "1:2"), "--autoscale needs --ray"),
        (("--ray", "--page"), "--page needs the model in this process; leave out --page or --ray"),
        (("--ray", "--replicas", 2, "--autoscale", "1:2"), "give either --replicas or --autoscale, not both"),
        (
            ("--ray", "ray://head:10001"),
            "--ray ray://head:10001: give auto or HOST:PORT of a cluster that this machine belongs to; from elsewhere, "
            "`ray job submit` runs the same command there",
        ),
    ],
)
def test_options_of_ray_that_do_not_fit_are_refused_in_one_line(covist, monkeypatch, given, line):
    monkeypatch.setattr("covist.extras.find_spec", lambda name: object())
    ran = covist("serve", *given, "--port", 0)
    assert ran.code == 2 and ran.stderr == f"covist: {line}\n"


def test_without_ray_one_line_says_what_to_install(covist, monkeypatch):
    monkeypatch.setattr("covist.extras.find_spec", lambda name: None if name == "ray" else object())
    ran = covist("serve", "--ray", "--replicas", 2)
    assert ran.code == 2
    assert ran.stderr == "covist: covist serve --ray needs ray: pip install 'covist[ray]'\n"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["serve", "--ray"], ["serve", "--ray", "local"]),
        (["serve", "--ray", "--replicas", "2"], ["serve", "--ray", "local", "--replicas", "2"]),
        (["batch", "--ray", "rows.jsonl"], ["batch", "--ray", "local", "rows.jsonl"]),
        (["batch", "rows.jsonl", "--ray", "auto"], ["batch", "rows.jsonl", "--ray", "auto"]),
        (["batch", "--ray", "10.0.0.1:6379", "rows"], ["batch", "--ray", "10.0.0.1:6379", "rows"]),
        (["run"], ["run"]),
    ],
)
def test_ray_without_an_address_means_this_machine(given, meant):
    assert with_ray_address(given) == meant
