-- Several stores: the first, the catalogue, knows them all; each knows its number and whose it is.

-- Which store this is. Number null: one that stands alone, or the catalogue of several.
create table store_self (
    only_one  bool primary key default true check (only_one),
    identity  uuid not null default gen_random_uuid(),
    number    int,
    catalogue uuid
);
insert into store_self default values;

-- In the catalogue: the others.
create table store_known (
    number   int primary key,
    identity uuid not null unique,
    -- Queue ids of a store begin with its number.
    next_id  int not null,
    -- Of its topologies, when somebody looked last.
    version  bigint not null default 0
) with (fillfactor = 50);

-- Segments on their way to another store. They are out of their queue and stand under `held_as`, a
-- queue id of nobody's, until the target's store has said what became of them.
create table departure (
    move_id    text primary key,
    source     int not null,
    target     int not null,
    held_as    int not null unique,
    firsts     bigint[] not null,
    new_firsts bigint[] not null
);
create index departure_source on departure (source);
create sequence held_as_seq as int increment by -1 minvalue -2147483648 maxvalue -1 start -1;

-- Who is who

-- What is wrong with using this store so, or null: number 0 is the catalogue, which has all.
create function store_trouble(as_number int, of_catalogue uuid, listed int) returns text
language plpgsql as $$
declare
    me store_self;
    known int;
begin
    select * into me from store_self for update;
    if as_number = 0 then
        if me.number is not null then
            return format('it is store %s of another one, which has to be listed first', me.number);
        end if;
        select max(number) + 1 into known from store_known;
        if listed < known then
            return format('it is the first of %s stores: list all of them', known);
        end if;
    elsif me.identity = of_catalogue then
        return 'it is listed twice';
    elsif me.number is null then
        if exists (select from queue) or exists (select from store_known) then
            return 'it has queues or stores of its own: list an empty one';
        end if;
        update store_self set number = as_number, catalogue = of_catalogue;
    elsif me.catalogue <> of_catalogue then
        return 'it belongs to another first store: list an empty one';
    elsif me.number <> as_number then
        return format('it is store %s, counted from 0: list the stores in the same order everywhere',
                      me.number);
    end if;
    return null;
end $$;

create function store_identity() returns uuid language sql stable as $$
    select identity from store_self
$$;

-- In the catalogue: false, it knows another one under that number.
create function know_store(nr int, its_identity uuid) returns boolean language sql as $$
    insert into store_known (number, identity, next_id)
    values (nr, its_identity, (nr << 24) + 1) on conflict do nothing;
    select exists (select from store_known where number = nr and identity = its_identity)
$$;

create function next_queue_id(in_store int) returns int language sql as $$
    update store_known set next_id = next_id + 1 where number = in_store returning next_id - 1
$$;

-- Members, under the id that the catalogue gave them. Who comes back has nothing any more: what was
-- its is others', or is claimed again.
create function join_store(id int, name varchar, at_address text, lease_s float8) returns void
language plpgsql as $$
declare
    touched int[] := aliases_of(array(
        select member_id from member where address = at_address union select id));
begin
    perform disown_all(id);
    delete from member where address = at_address or member_id = id;
    insert into member (member_id, member_name, address, alive_until)
    values (id, name, at_address, clock_timestamp() + make_interval(secs => lease_s));
    perform touch_topologies(touched);
end $$;

-- What the catalogue knows of replicas elsewhere

-- The version of the topologies of a store: another one than last time is a change of all of them
-- that have a replica there.
create function note_store_version(nr int, new_version bigint) returns void language plpgsql as $$
begin
    update store_known set version = new_version where number = nr and version < new_version;
    if found then
        perform touch_topologies(array(select alias_id from place where queue_id >> 24 = nr));
    end if;
end $$;

-- How many replicas there are in each store.
create function replicas_by_store() returns table (number int, count bigint)
language sql stable as $$
    select s.number, (select count(*) from place p where p.queue_id >> 24 = s.number)
    from (select 0 as number union all select k.number from store_known k) s order by s.number
$$;

-- Of replicas elsewhere, what their own store has to have; null: of all.
create function place_queues(id int) returns table (
    queue_id int, alias_id int, number int, queue_name varchar, durable boolean, policy jsonb,
    made boolean
) language sql stable as $$
    select p.queue_id, p.alias_id, p.number, (q.queue_name || '#' || p.number)::varchar, q.durable,
           q.policy, p.made
    from place p join queue q on q.queue_id = p.alias_id
    where p.queue_id >> 24 > 0 and not p.ending and (id is null or p.queue_id = id)
$$;

create function place_made(id int) returns void language sql as $$
    update place set made = true where queue_id = id and not made
$$;

create function queues_by_id(ids int[]) returns setof queue_row language sql stable as $$
    select (row_of(q)).* from queue q where q.queue_id = any (ids) order by q.queue_name
$$;

-- The policy of an alias, in another store than the alias's; all of them after an absence.
create function copy_policy(alias int, new_policy jsonb) returns void language sql as $$
    update queue set policy = new_policy where alias_id = alias and policy <> new_policy
$$;

-- The end of a replica elsewhere, in three steps. From the first to the last nothing else can
-- become of it; whoever leads then may go on where another one was stopped.

-- The queue to end; -1: there is none any more. Null: it is not draining.
create function begin_end(alias int, nr int, leader_epoch bigint) returns int
language plpgsql as $$
declare
    gone place;
begin
    perform fence_leader(leader_epoch);
    select * into gone from place where alias_id = alias and number = nr for update;
    if not found then
        return -1;
    end if;
    if gone.state <> 'draining' then
        return null;
    end if;
    update place set ending = true where alias_id = alias and number = nr;
    return gone.queue_id;
end $$;

create function finish_end(alias int, nr int, ended boolean, leader_epoch bigint) returns void
language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    if ended then
        perform forget_place(alias, nr);
    else
        update place set ending = false where alias_id = alias and number = nr;
    end if;
end $$;

-- Moves to another store
--
--   source: depart            out of the queue, under `held_as`
--   target: arrive            copied, with the move's id, in one transaction
--   source: leave             deleted, and remembered as batches that were here
--
-- Whoever finds a departure asks the target's store, where a move that is not known becomes one
-- that was cancelled and can never arrive: then the segments come back into their queue.

-- 0: they are out of the queue, as they may have been before. 1: no longer the owner's.
create function depart(
    under_id text, from_queue int, in_epoch bigint, to_queue int, first_ids bigint[],
    new_first_ids bigint[]
) returns int language plpgsql as $$
declare
    held int;
begin
    perform 1 from replica where queue_id = from_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    insert into departure (move_id, source, target, held_as, firsts, new_firsts)
    values (under_id, from_queue, to_queue, nextval('held_as_seq'), first_ids, new_first_ids)
    on conflict (move_id) do nothing returning held_as into held;
    if held is not null then
        update segment set queue_id = held where queue_id = from_queue and first_id = any (first_ids);
        update ack set queue_id = held where queue_id = from_queue and first_id = any (first_ids);
        update attempt set queue_id = held
        where queue_id = from_queue and first_id = any (first_ids);
    end if;
    return 0;
end $$;

create function departures(from_queue int) returns table (move_id text, target int)
language sql stable as $$
    select d.move_id, d.target from departure d where d.source = from_queue order by d.held_as desc
$$;

-- What is on its way, under its new ids.
create function departing(under_id text) returns table (
    first_id bigint, priority smallint, addressed boolean, arrived_at timestamptz, lengths int[],
    senders int[], receivers int[], contexts bigint[], attributes text, payload bytea, done text,
    attempts text
) language sql stable as $$
    select u.n, s.priority, s.addressed, s.arrived_at, s.lengths, s.senders, s.receivers,
           s.contexts, s.attributes::text, s.payload, a.done::text,
           (select jsonb_agg(jsonb_build_array(t.at_offset, t.attempts, t.due_at, t.failures))::text
            from attempt t where t.queue_id = d.held_as and t.first_id = s.first_id)
    from departure d cross join unnest(d.firsts, d.new_firsts) as u (f, n)
    join stored_segment s on s.queue_id = d.held_as and s.first_id = u.f
    left join ack a on a.queue_id = d.held_as and a.first_id = u.f
    where d.move_id = under_id order by u.n
$$;

-- 0: copy them now, in this transaction. 1: no longer the owner's, or cancelled. 2: they are here.
create function arrive(under_id text, to_queue int, in_epoch bigint) returns int
language plpgsql as $$
declare
    was_cancelled boolean;
begin
    -- First of all: who cancels waits for us, or we for it.
    insert into arrival (move_id, target) values (under_id, to_queue) on conflict do nothing;
    if not found then
        select cancelled into was_cancelled from arrival where move_id = under_id;
        return case when was_cancelled then 1 else 2 end;
    end if;
    perform 1 from replica where queue_id = to_queue and epoch = in_epoch for share;
    if not found then
        delete from arrival where move_id = under_id;
        return 1;
    end if;
    return 0;
end $$;

create function arrive_segment(
    to_queue int, first bigint, prio smallint, is_addressed boolean, arrived timestamptz,
    len int[], snd int[], rcv int[], ctx bigint[], att text, body bytea, done_text text, tries text
) returns void language plpgsql as $$
begin
    insert into segment (queue_id, first_id, priority, addressed, count, arrived_at, lengths,
                         senders, receivers, contexts, attributes, producers, batches, payload)
    values (to_queue, first, prio, is_addressed, cardinality(len), arrived, len, snd, rcv, ctx,
            att::jsonb, '{}', '{}', body);
    if done_text is not null then
        insert into ack values (to_queue, first, done_text::int4multirange);
    end if;
    insert into attempt (queue_id, first_id, at_offset, attempts, due_at, failures)
    select to_queue, first, (t ->> 0)::int, (t ->> 1)::int, (t ->> 2)::timestamptz, t -> 3
    from jsonb_array_elements(tries::jsonb) as t;
end $$;

create function arrival_resolved(under_id text) returns void language sql as $$
    update arrival set resolved = true, arrived_at = clock_timestamp() where move_id = under_id
$$;

-- The end of a departure: deleted here if they arrived there, else back in their queue. 1: the epoch
-- is no longer the owner's.
create function end_departure(under_id text, in_epoch bigint, arrived boolean) returns int
language plpgsql as $$
declare
    gone departure;
begin
    select * into gone from departure where move_id = under_id;
    if not found then
        return 0;
    end if;
    perform 1 from replica where queue_id = gone.source and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    select * into gone from departure where move_id = under_id for update;
    if not found then
        return 0;
    end if;
    if arrived then
        perform drop_segments(gone.held_as, gone.firsts);
        insert into producer_mark as m (queue_id, producer, batches)
        select gone.source, p.producer, p.batches from producer_mark p
        where p.queue_id = gone.held_as order by p.producer
        on conflict (queue_id, producer) do update
            set batches = m.batches + excluded.batches, seen_at = now();
        delete from producer_mark where queue_id = gone.held_as;
        delete from ack where queue_id = gone.held_as;
        delete from attempt where queue_id = gone.held_as;
    else
        update segment set queue_id = gone.source where queue_id = gone.held_as;
        update ack set queue_id = gone.source where queue_id = gone.held_as;
        update attempt set queue_id = gone.source where queue_id = gone.held_as;
    end if;
    delete from departure where move_id = under_id;
    return 0;
end $$;

-- What is on its way is stored, for as long as nobody knows better.

create or replace function end_replica(id int) returns boolean language plpgsql as $$
begin
    -- For update: a writer finishes before us, and the next one finds nobody.
    perform 1 from replica where queue_id = id for update;
    perform drop_all_done(id);
    if exists (select from segment where queue_id = id)
       or exists (select from departure where source = id) then
        return false;
    end if;
    delete from attempt where queue_id = id;
    perform touch_topologies(array(select alias_id from queue where queue_id = id));
    delete from queue where queue_id = id;
    return true;
end $$;

-- Segments out of their queue go with it.
create or replace function clear_queue(id int) returns void language plpgsql as $$
declare
    shared bigint[];
    held int[];
begin
    with gone as (delete from departure where source = id returning held_as)
    select array_agg(held_as) into held from gone;
    held := held || id;
    delete from ack where queue_id = any (held);
    delete from attempt where queue_id = any (held);
    select array_agg(shared_id) into shared from segment
    where queue_id = any (held) and shared_id is not null;
    delete from segment where queue_id = any (held);
    delete from producer_mark where queue_id = id;
    perform free_payloads_of(shared);
end $$;

-- Who was sent a batch that is on its way must not send it again.
create or replace function marks(in_queue int)
returns table (producer bigint, batches int8multirange) language sql stable as $$
    select u.p, range_agg(u.b) from (
        select m.producer, unnest(m.batches) from producer_mark m where m.queue_id = in_queue
        union all
        select v.p, int8range(v.b, v.b + 1) from (
            -- Unnested side by side here: twice as fast as a function in `from` for each segment.
            select unnest(s.producers), unnest(s.batches) from segment s where s.queue_id = in_queue
            union all
            select unnest(s.producers), unnest(s.batches)
            from departure d join segment s on s.queue_id = d.held_as where d.source = in_queue
        ) as v (p, b)
    ) as u (p, b) group by u.p
$$;
