"""Users in every store: kept as salted keys, counted when they change."""

from __future__ import annotations

from people import user

from tidegate.core.model import ClientMode, Grant, Right
from tidegate.core.store import Store
from tidegate.protocol.scram import derive_keys


async def test_users_are_kept_as_they_were_given(store: Store) -> None:
    ann = user("ann", read="orders.*", admin='"quoted" \\ *')
    assert await store.list_users() == []
    assert await store.add_user(ann)
    assert await store.add_user(user("aaron"))
    assert not await store.add_user(user("ann", write="*"))
    assert await store.list_users() == [user("aaron"), ann]


async def test_every_change_is_counted_and_what_changes_nothing_is_not(store: Store) -> None:
    keys = derive_keys("another password", iterations=4096)
    versions = [await store.users_version()]

    async def changed(did: bool) -> bool:
        versions.append(await store.users_version())
        return did and versions[-1] > versions[-2]

    assert await changed(await store.add_user(user("ann")))
    assert await changed(await store.set_user_keys("ann", keys))
    assert await changed(await store.set_user_grants("ann", [Grant(Right.WRITE, "*")]))
    (ann,) = await store.list_users()
    assert ann.keys == keys
    assert ann.grants == [Grant(Right.WRITE, "*")]
    assert await changed(await store.remove_user("ann"))
    for nothing in (
        store.set_user_keys("ann", keys),
        store.set_user_grants("ann", []),
        store.remove_user("ann"),
    ):
        assert not await nothing
    assert await store.users_version() == versions[-1]
    assert await store.list_users() == []


async def test_nodes_share_the_first_secret(store: Store) -> None:
    first = await store.cluster_secret(b"a" * 32)
    assert first == b"a" * 32
    assert await store.cluster_secret(b"b" * 32) == first


async def test_clients_are_found_by_their_user_and_go_with_it(store: Store) -> None:
    await store.add_user(user("ann"))
    client = await store.register_client("worker", ClientMode.READ_WRITE, "ann")
    assert client is not None
    assert await store.find_client(client.client_id, None, "ann") == client
    assert await store.find_client(None, "worker", "ann") == client
    assert await store.find_client(client.client_id, None, "bob") is None
    assert await store.find_client(client.client_id, None) == client
    free = await store.register_client("nobody's", ClientMode.READ_WRITE)
    assert free is not None
    assert await store.find_client(free.client_id, None, "ann") is None
    reserved = await store.reserve_client("later")
    later = await store.register_client("later", ClientMode.READ_ONLY, "ann")
    assert later is not None
    assert later.client_id == reserved
    await store.remove_user("ann")
    assert await store.find_client(client.client_id, None) is None
    assert await store.find_client(later.client_id, None) is None
    assert await store.find_client(free.client_id, None) == free
