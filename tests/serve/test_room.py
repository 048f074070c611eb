"""Room that requests share: nothing is taken twice, nobody is overtaken, and whoever leaves gives everything back."""

import asyncio

import pytest

from covist.serve.errors import Refusal
from covist.serve.room import Room, RoomClaim


def test_a_claim_grows_while_there_is_room_and_is_given_back():
    room = Room(10)
    with pytest.raises(Refusal, match="too many bytes at once") as refused, RoomClaim(room, "bytes") as claim:
        claim.grow(6)
        claim.grow(4)
        claim.grow(1)
    assert refused.value.status == 503 and refused.value.headers["Retry-After"] == "1"
    assert room.taken == 0


def test_waiting_requests_are_served_in_order_of_arrival():
    async def wait() -> list[int]:
        room, order = Room(10), []

        async def take(amount: int) -> None:
            await room.wait(amount)
            order.append(amount)

        await take(10)
        waiting = [asyncio.create_task(take(amount)) for amount in (8, 1, 5)]
        await asyncio.sleep(0)
        assert order == [10]
        room.free(10)
        await asyncio.gather(*waiting[:2])
        assert order == [10, 8, 1] and not waiting[2].done()
        room.free(8)
        await waiting[2]
        return [*order, room.taken]

    assert asyncio.run(wait()) == [10, 8, 1, 5, 6]


@pytest.mark.parametrize("has_turn", [False, True])
def test_a_request_that_leaves_does_not_hold_up_the_others(has_turn):
    async def leave() -> int:
        room = Room(10)
        assert room.take(4)
        large = asyncio.create_task(room.wait(9))
        small = asyncio.create_task(room.wait(5))
        await asyncio.sleep(0)
        if has_turn:
            room.free(4)  # it has its turn, and leaves before it notices
        large.cancel()
        await small
        return room.taken

    assert asyncio.run(leave()) == (5 if has_turn else 9)
