from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from gatekeeper.errors import InputError
from gatekeeper.store import schema_traces, spans
from gatekeeper.store.spans import SpanRow

if TYPE_CHECKING:
    from gatekeeper.store.database import Database


def row(number: int, content: str = "a", trace: str = "t") -> SpanRow:
    return SpanRow(trace, f"s{number:06d}", trace, content * 64, f'"{number}{content}"')


def count(db: Database) -> int:
    with db.read() as session:
        query = select(func.count()).select_from(schema_traces.span)
        return int(session.execute(query).scalar_one())


def test_new_known_and_contradicting_rows(db: Database) -> None:
    with db.write() as session:
        first = spans.insert(session, [row(1), row(2)])
    assert (first.new, first.conflicts) == ((row(1), row(2)), ())
    with db.write() as session:
        second = spans.insert(session, [row(3), row(1), row(2, "b"), row(3, "c"), row(3)])
    assert second.new == (row(3),)
    assert second.conflicts == (row(2, "b"), row(3, "c"))
    with db.read() as session:
        assert list(spans.of_task(session, "t", limit=9)) == ['"1a"', '"2a"', '"3a"']
        assert list(spans.of_task(session, "t", limit=2)) == ['"1a"', '"2a"']
        assert list(spans.of_task(session, "other", limit=9)) == []


def test_many_rows_in_one_request(db: Database) -> None:
    many = [row(n) for n in range(3000)]
    with db.write() as session:
        assert len(spans.insert(session, many).new) == 3000
    with db.write() as session:
        again = spans.insert(session, [*many, row(3000)])
    assert again.new == (row(3000),)
    assert again.conflicts == ()


def test_ids_and_documents_come_back_as_they_were(db: Database) -> None:
    odd = SpanRow(
        "a\\b c", 'é"\\N', "a\\b c", "0" * 64, r'{"x":"\\ \u0000 \ud800 \n \t","y":"\\."}'
    )
    with db.write() as session:
        assert spans.insert(session, [odd, row(1)]).new == (odd, row(1))
    with db.write() as session:
        assert spans.insert(session, [odd, odd]) == spans.Stored((), ())
    with db.read() as session:
        assert list(spans.of_task(session, odd.task, limit=9)) == [odd.document]


def test_what_postgresql_refuses_is_an_error_of_ours(db: Database) -> None:
    if db.sqlite:
        pytest.skip("SQLite keeps NUL")

    def work() -> None:
        with db.write() as session:
            spans.insert(session, [row(1), SpanRow("t", "\x00", "t", "0" * 64, "{}")])

    with pytest.raises(InputError, match="text"):
        work()
    assert count(db) == 0
    with db.write() as session:  # the connection is fit for the next one
        assert spans.insert(session, [row(1)]).new == (row(1),)


def test_two_requests_on_one_connection_do_not_mix(db: Database) -> None:
    with db.write() as session:
        spans.insert(session, [row(1)])
    with db.write() as session:
        assert spans.insert(session, [row(2)]).new == (row(2),)
        assert spans.insert(session, [row(3)]).new == (row(3),)  # nor two in one transaction
    assert count(db) == 3


def test_a_failed_transaction_leaves_nothing(db: Database) -> None:
    def work() -> None:
        with db.write() as session:
            spans.insert(session, [row(1)])
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        work()
    assert count(db) == 0


def test_the_same_spans_from_many_senders_at_once_are_stored_once(db: Database) -> None:
    rows = [row(n) for n in range(200)]
    new: list[int] = []
    contradicting: list[int] = []

    def send(order: int) -> None:
        turned = rows if order % 2 else rows[::-1]
        with db.write() as session:
            stored = spans.insert(session, turned)
        new.append(len(stored.new))
        contradicting.append(len(stored.conflicts))

    threads = [threading.Thread(target=send, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(new) == 200
    assert len(new) == 6
    assert sum(contradicting) == 0
    assert count(db) == 200
