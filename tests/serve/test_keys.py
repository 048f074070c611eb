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
