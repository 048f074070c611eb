"""Who may ask."""

import pytest

from covist.errors import CovistError
from covist.serve.errors import Refusal
from covist.serve.keys import Keys


def test_without_keys_everybody_may_ask():
    Keys().check(None)


def test_any_key_of_the_file_opens(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst-key\n\n  second-key  \n")
    keys = Keys.read(path)
    keys.check("Bearer first-key")
    keys.check("bearer second-key")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer other", "Basic first-key", "first-key", "Bearer # ours", "Bearer \udcff"],
)
def test_anything_else_is_refused(header):
    with pytest.raises(Refusal, match="no valid API key") as refused:
        Keys(["first-key"]).check(header)
    assert refused.value.status == 401


def test_keys_are_not_kept_as_text():
    assert "secret" not in repr(vars(Keys(["secret"])))


def test_a_file_without_a_key_is_refused(tmp_path):
    (tmp_path / "keys").write_text("# nothing\n")
    with pytest.raises(CovistError, match="has no key"):
        Keys.read(tmp_path / "keys")
    with pytest.raises(CovistError, match="cannot be read"):
        Keys.read(tmp_path / "missing")


@pytest.mark.parametrize(
    "key", ["schl\u00fcssel", "two words", "tab\tkey", "zero\u200bwidth", "\u043a\u043b\u044e\u0447"]
)
def test_a_key_that_headers_do_not_carry_is_refused_at_the_start(tmp_path, key):
    path = tmp_path / "keys"
    path.write_text(f"first-key\n{key}\n", encoding="utf-8")
    with pytest.raises(CovistError, match="line 2: a key may contain only visible ASCII") as refused:
        Keys.read(path)
    assert key not in str(refused.value)
    with pytest.raises(CovistError, match="visible ASCII"):
        Keys([key])


def test_a_mark_of_windows_editors_is_not_part_of_the_first_key(tmp_path):
    path = tmp_path / "keys"
    path.write_text("first-key\n", encoding="utf-8-sig")
    Keys.read(path).check("Bearer first-key")
