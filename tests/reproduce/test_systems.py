"""Nothing of the paper's tables disappears silently: a system is a method of ours, or it has a reason."""

import re

import pytest

from covist import available_methods
from covist.methods.absent import absent_named, absent_systems
from covist.methods.grammar import parse_name
from covist.reproduce.paper import TABLES, PaperTable, load_table
from covist.reproduce.runs import run_of
from covist.reproduce.systems import SYSTEMS, method_of, plain_name

COMPARED = [name for name in TABLES if name != "components"]  # the cumulative study has rows of CoViST alone
ROWS = [(table, row) for table in map(load_table, COMPARED) for row in table.rows]
LISTED = sorted({plain_name(row.system) for _, row in ROWS})


@pytest.mark.parametrize("system", LISTED)
def test_a_system_is_here_or_has_a_reason(system):
    assert system in SYSTEMS or absent_named(system), f"{system}: name its method in SYSTEMS, or say in absent.json why"


def test_every_row_of_a_system_that_is_here_can_be_run():
    for table, row in ROWS:
        assert (run_of(table, row) is None) == (method_of(row.system) is None), (table.name, row.system)


def test_no_name_is_left_over():
    assert set(SYSTEMS) <= set(LISTED)


def test_every_system_that_is_here_is_a_registered_method():
    assert {name for name in SYSTEMS.values() if name != "vanilla"} <= set(available_methods())


def test_methods_with_published_counts_run_them():
    assert method_of("PriorTR") == "priortr:counts=nominal"
    assert parse_name(str(method_of("FastV"))).settings == {}


def test_rows_of_images_with_several_tiles_run_the_steps_that_were_published_for_them():
    runs = {table.name: run_of(table, row) for table, row in ROWS if row.system == "FlowCut"}
    assert {name: run.method for name, run in runs.items()} == {"fixed": "flowcut", "next": "flowcut:tiles=nominal"}


def place(table: PaperTable) -> str:
    return f"{table.number}{f' ({table.panel})' if table.panel else ''}"


@pytest.mark.parametrize("absent", absent_systems(), ids=lambda absent: absent.name)
def test_an_entry_names_every_table_that_lists_it(absent):
    tables = {place(table) for table, row in ROWS if plain_name(row.system) == absent.name}
    assert tables <= set(re.findall(r"\d+(?: \([a-z]\))?", absent.listed))
    venues = {row.venue for _, row in ROWS if plain_name(row.system) == absent.name} - {None}
    assert venues <= {absent.venue}
