-- Logical queues: an alias, and the replicas that it is spread over. A replica is a queue like any
-- other, with an owner, an epoch and segments; here is what makes several of them one.
--
-- Whoever locks rows of several of these tables does so in this order, so that nobody waits for who
-- waits for him: leader, queue (of an alias), place, replica, member, topology.

-- Set: the queue is an alias, and this is how it scales.
alter table queue add column scaling jsonb;
-- Of a replica: the alias, which may be in another store, and its number; else null and 0.
alter table queue add column alias_id int;
alter table queue add column number int not null default 0;
-- The same, where writers look anyway.
alter table replica add column alias_id int;
create index queue_alias on queue (alias_id) where alias_id is not null;

-- One row per alias that ever was, in every store that has something of it: rows stay, so that the
-- sum of their versions never comes back to what it was.
create table topology (
    alias_id    int primary key,
    version     bigint not null default 1,
    -- The largest number that a replica ever had.
    last_number int not null default 0,
    -- Which replica holds the groups and receivers of each home; empty: none was said yet. Below 0:
    -- it is about to, and nobody takes anything new of them.
    homes       int[] not null default '{}'
) with (fillfactor = 50);

-- Replicas as the catalogue knows them, whichever store they are in.
create table place (
    alias_id   int not null references queue on delete cascade,
    number     int not null,
    queue_id   int not null unique,
    state      text not null default 'starting',
    share      float8 not null default 0,
    -- Which machine is to serve it; null: any node may.
    machine_id int,
    -- Whether its own store is known to have it; false: whoever wants to serve it makes it there.
    made       boolean not null default true,
    -- Set while its own store is asked to end it: nothing else may become of it meanwhile.
    ending     boolean not null default false,
    primary key (alias_id, number)
) with (fillfactor = 50);

-- Moves whose segments are here, or must never come any more.
create table arrival (
    move_id    text primary key,
    target     int not null,
    cancelled  boolean not null default false,
    -- Whether the source knows: then it is forgotten after a while.
    resolved   boolean not null default false,
    arrived_at timestamptz not null default now()
);

-- Whether somebody has noticed that its lease has run out.
alter table member add column lapse_noticed boolean not null default false;

-- Versions

-- In order, so that two who change the same ones do not wait for each other.
create function touch_topologies(aliases int[]) returns void language sql as $$
    insert into topology (alias_id)
    select distinct a from unnest(aliases) as a where a is not null order by a
    on conflict (alias_id) do update set version = topology.version + 1
$$;

-- The alias of a queue, which may be itself; null: it is a plain queue.
create function alias_of(q queue) returns int language sql immutable as $$
    select case when q.scaling is not null then q.queue_id else q.alias_id end
$$;

-- Those of which any of these members owns something.
create function aliases_of(members int[]) returns int[] language sql stable as $$
    select array(select alias_of(q) from replica r join queue q using (queue_id)
                 where r.owner = any (members))
$$;

create function touch_topologies_of(members int[]) returns void language sql as $$
    select touch_topologies(aliases_of(members))
$$;

-- A lease runs out without anybody's doing: whoever asks first after that says so.
create function topology_version() returns bigint language plpgsql as $$
declare
    lapsed int[];
begin
    if exists (select from member where alive_until <= clock_timestamp() and not lapse_noticed) then
        with found as (
            select member_id from member
            where alive_until <= clock_timestamp() and not lapse_noticed
            for update skip locked
        ), noticed as (
            update member m set lapse_noticed = true from found f
            where m.member_id = f.member_id returning m.member_id
        ) select array_agg(member_id) into lapsed from noticed;
        perform touch_topologies_of(lapsed);
    end if;
    return (select coalesce(sum(version), 0)::bigint from topology);
end $$;

-- Queues, which now are plain ones, aliases or replicas

alter type queue_row add attribute elastic boolean, add attribute alias_id int,
    add attribute number int;

create function row_of(q queue) returns queue_row language sql immutable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy, q.scaling is not null,
           coalesce(q.alias_id, 0), q.number
$$;

create or replace function create_queue(name varchar, is_durable boolean, with_policy jsonb)
returns setof queue_row language plpgsql as $$
declare
    made queue;
begin
    insert into queue (queue_name, durable, policy) values (name, is_durable, with_policy)
    on conflict do nothing returning * into made;
    if made.queue_id is null then
        return;
    end if;
    insert into replica (queue_id) values (made.queue_id);
    return next row_of(made);
end $$;

-- Replicas have the policy of their alias.
create or replace function set_policy(id int, new_policy jsonb) returns boolean
language plpgsql as $$
begin
    update queue set policy = new_policy where queue_id = id or alias_id = id;
    return found;
end $$;

create or replace function find_queue(id int, name varchar) returns setof queue_row
language sql stable as $$
    select (row_of(q)).* from queue q where q.queue_id = id or q.queue_name = name
$$;

create or replace function list_queues() returns setof queue_row language sql stable as $$
    select (row_of(q)).* from queue q where q.alias_id is null order by q.queue_name
$$;

-- Ids of logical queues with a message that the client could read, as the store sees them.
create function active_ids(client int) returns setof int language sql stable as $$
    select distinct coalesce(q.alias_id, q.queue_id) from queue q
    where exists (select from segment s where s.queue_id = q.queue_id
                  and (s.receivers is null or client = any (s.receivers))
                  and (s.due_at is null or s.due_at <= clock_timestamp()))
$$;

create or replace function active_queues(client int) returns setof queue_row
language sql stable as $$
    select (row_of(q)).* from queue q where q.queue_id in (select active_ids(client))
    order by q.queue_name
$$;

drop function locate_queue(int);
create function locate_queue(id int) returns table (
    queue_id int, queue_name varchar, durable boolean, policy jsonb, elastic boolean, alias_id int,
    number int, owner int, address text, alive boolean
) language sql stable as $$
    select (row_of(q)).*, r.owner, m.address, coalesce(m.alive_until > clock_timestamp(), false)
    from queue q join replica r using (queue_id) left join member m on m.member_id = r.owner
    where q.queue_id = id
$$;

-- Everything that is stored of one queue.
create function clear_queue(id int) returns void language plpgsql as $$
declare
    shared bigint[];
begin
    delete from ack where queue_id = id;
    delete from attempt where queue_id = id;
    select array_agg(shared_id) into shared from segment
    where queue_id = id and shared_id is not null;
    delete from segment where queue_id = id;
    delete from producer_mark where queue_id = id;
    perform free_payloads_of(shared);
end $$;

-- A queue with everything that is stored for it; an alias with its replicas here.
create or replace function delete_queue(id int) returns boolean language plpgsql as $$
declare
    gone int;
begin
    perform 1 from queue where queue_id = id for update;
    perform 1 from place where alias_id = id order by number for update;
    -- For update first: a writer that holds a row for share finishes before us.
    perform 1 from replica r join queue q using (queue_id)
    where q.queue_id = id or q.alias_id = id order by r.queue_id for update of r;
    for gone in select queue_id from queue where alias_id = id loop
        perform clear_queue(gone);
    end loop;
    perform clear_queue(id);
    perform touch_topologies(array(select alias_id from topology where alias_id = id));
    delete from dedup where queue_id = id;
    delete from queue where queue_id = id or alias_id = id;
    return found;
end $$;

create or replace view message as
select s.first_id + o.at - 1 as message_id,
       s.queue_id,
       -- As users know it: without the number of a replica.
       (case when q.number = 0 then q.queue_name
             else regexp_replace(q.queue_name, '#\d+$', '') end)::varchar(255) as queue_name,
       s.senders[least(o.at, cardinality(s.senders))] as sender_id,
       s.receivers[least(o.at, cardinality(s.receivers))] as receiver_id,
       s.contexts[o.at] as context,
       s.priority,
       s.arrived_at as time_of_arrival,
       -- A message that failed waits for its own time.
       coalesce(t.due_at, s.due_at) as due_at,
       s.attributes -> (o.at - 1)::int ->> 0 as content_type,
       s.attributes -> (o.at - 1)::int -> 1 as headers,
       substring(s.payload from o.starts::int for o.length) as message,
       q.number as replica
from stored_segment s
join queue q using (queue_id)
left join ack a using (queue_id, first_id)
cross join lateral (
    select at, length, sum(length) over (order by at) - length + 1 as starts
    from unnest(s.lengths) with ordinality as u (length, at)
) o
left join attempt t
    on t.queue_id = s.queue_id and t.first_id = s.first_id and t.at_offset = o.at - 1
where a.done is null or not a.done @> (o.at - 1)::int;

-- Dedup ids are the logical queue's: what one replica has seen, another one finds.

create function logical_id(id int) returns int language sql stable as $$
    select coalesce((select alias_id from queue where queue_id = id), id)
$$;

create or replace function remember_dedup(in_queue int, in_epoch bigint, ids jsonb, at float8)
returns int language plpgsql as $$
declare
    logical int;
begin
    select coalesce(alias_id, in_queue) into logical from replica
    where queue_id = in_queue and epoch = in_epoch;
    if found then
        insert into dedup (queue_id, dedup_id, seen_at)
        select logical, i, to_timestamp(at) from jsonb_array_elements_text(ids) as i
        -- In order: replicas of one alias may store the same ids at the same time.
        order by i
        on conflict (queue_id, dedup_id) do update set seen_at = excluded.seen_at;
    end if;
    return 0;
end $$;

create or replace function dedup_ids(in_queue int, newer_than_s float8)
returns table (dedup_id text, age_s float8) language sql stable as $$
    select d.dedup_id, extract(epoch from clock_timestamp() - d.seen_at)::float8 from dedup d
    where d.queue_id = logical_id(in_queue)
      and d.seen_at > clock_timestamp() - make_interval(secs => newer_than_s)
$$;

-- The alias may be in another store: then one of its replicas says what its window is.
create or replace function forget_dedup(default_window_s float8) returns bigint language sql as $$
    with gone as (
        delete from dedup d where d.seen_at < clock_timestamp() - make_interval(secs => coalesce((
            select (q.policy ->> 'dedup_window_s')::float8 from queue q
            where q.queue_id = d.queue_id or q.alias_id = d.queue_id limit 1
        ), default_window_s)) returning 1
    ) select count(*) from gone
$$;

-- Members and ownership: as before, and whoever has a topology hears of it

create or replace function join_cluster(name varchar, at_address text, lease_s float8) returns int
language plpgsql as $$
declare
    joined int;
    touched int[] :=
        aliases_of(array(select member_id from member where address = at_address));
begin
    delete from member where address = at_address;
    insert into member (member_name, address, alive_until)
    values (name, at_address, clock_timestamp() + make_interval(secs => lease_s))
    returning member_id into joined;
    perform touch_topologies(touched);
    return joined;
end $$;

create function disown_all(member int) returns void language plpgsql as $$
begin
    perform 1 from replica where owner = member order by queue_id for update;
    update replica set owner = null where owner = member;
end $$;

create or replace function leave_cluster(id int) returns void language plpgsql as $$
declare
    touched int[] := aliases_of(array[id]);
begin
    perform disown_all(id);
    delete from member where member_id = id;
    perform touch_topologies(touched);
end $$;

create or replace function renew_member(id int, lease_s float8) returns boolean
language plpgsql as $$
declare
    had_lapsed boolean;
begin
    update member m set alive_until = clock_timestamp() + make_interval(secs => lease_s),
                        lapse_noticed = false
    from (select lapse_noticed from member where member_id = id for update) before
    where m.member_id = id returning before.lapse_noticed into had_lapsed;
    if had_lapsed then
        perform touch_topologies_of(array[id]);
    end if;
    return had_lapsed is not null;
end $$;

create or replace function release_queue(id int, in_epoch bigint, heir int) returns boolean
language plpgsql as $$
begin
    update replica set owner = heir, epoch = epoch + 1 where queue_id = id and epoch = in_epoch;
    if not found then
        return false;
    end if;
    perform touch_topologies(array(select alias_of(q) from queue q where q.queue_id = id));
    return true;
end $$;

-- Topologies. Orders come from the leader: `fence_leader` ends those of a deposed one.

create type topology_row as (
    queue_id int, queue_name varchar, version bigint, scaling jsonb, replicas jsonb, homes int[]
);
create type place_row as (
    queue_id int, number int, state text, share float8, machine_id int, address text
);

create function place_rows(alias int) returns setof place_row language sql stable as $$
    select p.queue_id, p.number, p.state, p.share, p.machine_id, m.address
    from place p left join replica r using (queue_id)
    left join member m on m.member_id = r.owner and m.alive_until > clock_timestamp()
    where alias is null or p.alias_id = alias order by p.alias_id, p.number
$$;

-- Replicas as [[queue id, number, state, share, machine, address], …]. Null: of all aliases.
create function topologies(alias int) returns setof topology_row language sql stable as $$
    select q.queue_id, q.queue_name, t.version, q.scaling, coalesce((
               select jsonb_agg(jsonb_build_array(p.queue_id, p.number, p.state, p.share,
                                                  p.machine_id, p.address) order by p.number)
               from place_rows(q.queue_id) p
           ), '[]'), t.homes
    from queue q join topology t on t.alias_id = q.queue_id
    where q.scaling is not null and (alias is null or q.queue_id = alias)
    order by q.queue_name
$$;

-- Null ends it, if there are no replicas. False: no such queue, or it has some.
create function set_scaling(id int, new_scaling jsonb) returns boolean language plpgsql as $$
begin
    perform 1 from queue where queue_id = id and alias_id is null for update;
    if not found or (new_scaling is null and exists (select from place where alias_id = id)) then
        return false;
    end if;
    update queue set scaling = new_scaling where queue_id = id;
    perform touch_topologies(array[id]);
    return true;
end $$;

-- The queue of a replica; in its own store. Again changes nothing.
create function make_replica(
    id int, alias int, nr int, name varchar, is_durable boolean, with_policy jsonb
) returns void language plpgsql as $$
begin
    insert into queue (queue_id, queue_name, durable, policy, alias_id, number)
    values (id, name, is_durable, with_policy, alias, nr) on conflict (queue_id) do nothing;
    insert into replica (queue_id, alias_id) values (id, alias) on conflict do nothing;
    perform touch_topologies(array[alias]);
end $$;

-- Another replica, here or in another store, where it is made next. No row: no such alias.
create function add_replica(
    alias int, leader_epoch bigint, on_machine int, in_store int
) returns setof place_row language plpgsql as $$
declare
    base queue;
    nr int;
    id int;
begin
    perform fence_leader(leader_epoch);
    select * into base from queue q where q.queue_id = alias and q.scaling is not null for update;
    if not found then
        return;
    end if;
    -- A queue may have had such a name before its alias had replicas.
    select min(n) into nr from topology t, generate_series(t.last_number + 1, t.last_number + 1000)
        as n where t.alias_id = alias
        and not exists (select from queue q where q.queue_name = base.queue_name || '#' || n);
    if in_store > 0 then
        id := next_queue_id(in_store);
    else
        id := nextval('queue_queue_id_seq');
        perform make_replica(id, alias, nr, (base.queue_name || '#' || nr)::varchar, base.durable,
                             base.policy);
    end if;
    insert into place (alias_id, number, queue_id, machine_id, made)
    values (alias, nr, id, on_machine, in_store = 0);
    update topology set last_number = nr, version = version + 1 where alias_id = alias;
    return query select * from place_rows(alias) p where p.number = nr;
end $$;

create function assign_replica(alias int, nr int, to_machine int, leader_epoch bigint)
returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    update place set machine_id = to_machine where alias_id = alias and number = nr;
    if not found then
        return false;
    end if;
    perform touch_topologies(array[alias]);
    return true;
end $$;

-- False: there is none, or it is at its end.
create function set_replica_state(alias int, nr int, new_state text, leader_epoch bigint)
returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    update place set state = new_state where alias_id = alias and number = nr and not ending;
    if not found then
        return false;
    end if;
    perform touch_topologies(array[alias]);
    return true;
end $$;

-- Of all replicas: who is not named gets nothing. False: one that is named is not there.
create function set_shares(alias int, numbers int[], shares float8[], leader_epoch bigint)
returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    perform 1 from place where alias_id = alias order by number for update;
    if exists (select from unnest(numbers) as n
               where not exists (select from place p where p.alias_id = alias and p.number = n))
       or not exists (select from queue where queue_id = alias and scaling is not null) then
        return false;
    end if;
    update place p
    set share = coalesce((select u.s from unnest(numbers, shares) as u (n, s)
                          where u.n = p.number), 0)
    where p.alias_id = alias;
    perform touch_topologies(array[alias]);
    return true;
end $$;

-- False: one of them names a replica that is not there.
create function set_homes(alias int, new_homes int[], leader_epoch bigint) returns boolean
language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    -- Their end would leave homes without anybody.
    perform 1 from place where alias_id = alias order by number for share;
    if exists (select from unnest(new_homes) as n
               where not exists (select from place p where p.alias_id = alias and p.number = abs(n)))
    then
        return false;
    end if;
    update topology set homes = new_homes, version = version + 1 where alias_id = alias;
    return found;
end $$;

create function assigned(to_machine int) returns setof place_row language sql stable as $$
    select p.* from place_rows(null) p where p.machine_id = to_machine
$$;

-- The end of a replica

-- Delete segments of which every message is done, and what is noted of segments that are gone.
create function drop_all_done(in_queue int) returns void language plpgsql as $$
declare
    finished bigint[];
begin
    select array_agg(s.first_id) into finished
    from ack a join segment s using (queue_id, first_id)
    where a.queue_id = in_queue
      and (select sum(upper(r) - lower(r)) from unnest(a.done) r) >= s.count;
    if finished is not null then
        perform drop_segments(in_queue, finished);
        delete from ack where queue_id = in_queue and first_id = any (finished);
        delete from attempt where queue_id = in_queue and first_id = any (finished);
    end if;
    delete from ack a where a.queue_id = in_queue and not exists (
        select from segment s where s.queue_id = in_queue and s.first_id = a.first_id);
end $$;

create or replace function drop_done(in_queue int, in_epoch bigint) returns int
language plpgsql as $$
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    perform drop_all_done(in_queue);
    return 0;
end $$;

-- In its own store. False: something is stored in it. Which batches it had stays known: a producer
-- that got no answer asks before it sends them elsewhere.
create function end_replica(id int) returns boolean language plpgsql as $$
begin
    -- For update: a writer finishes before us, and the next one finds nobody.
    perform 1 from replica where queue_id = id for update;
    perform drop_all_done(id);
    if exists (select from segment where queue_id = id) then
        return false;
    end if;
    delete from attempt where queue_id = id;
    perform touch_topologies(array(select alias_id from queue where queue_id = id));
    delete from queue where queue_id = id;
    return true;
end $$;

-- What the catalogue knew of it: its homes, which are empty, and its share go to the others.
create function forget_place(alias int, nr int) returns void language plpgsql as $$
begin
    perform 1 from place where alias_id = alias order by number for update;
    delete from place where alias_id = alias and number = nr;
    update place set share = share / t.whole
    from (select sum(share) as whole from place where alias_id = alias) t
    where alias_id = alias and t.whole > 0 and t.whole < 1 - 1e-9;
    update topology t set version = t.version + 1, homes = case
        when not t.homes && array[nr, -nr] then t.homes
        when not exists (select from place p where p.alias_id = alias) then '{}'
        else array(
            select case when abs(h.number) = nr then sign(h.number)::int * (
                select heirs.numbers[1 + h.at % cardinality(heirs.numbers)] from (
                    -- Those that stay, if there are any.
                    select coalesce(array_agg(p.number order by p.number)
                                        filter (where p.state <> 'draining'),
                                    array_agg(p.number order by p.number)) as numbers
                    from place p where p.alias_id = alias
                ) heirs
            ) else h.number end
            from unnest(t.homes) with ordinality as h (number, at) order by h.at
        ) end
    where t.alias_id = alias;
end $$;

-- Of a replica in this store. True: it is gone, as it may have been before.
create function retire_replica(alias int, nr int, leader_epoch bigint) returns boolean
language plpgsql as $$
declare
    gone place;
begin
    perform fence_leader(leader_epoch);
    -- The others, too: they share what it had.
    perform 1 from place where alias_id = alias order by number for update;
    select * into gone from place where alias_id = alias and number = nr;
    if not found then
        return true;
    end if;
    if gone.state <> 'draining' or not end_replica(gone.queue_id) then
        return false;
    end if;
    perform forget_place(alias, nr);
    return true;
end $$;

-- Moving segments to another queue of this store

-- 0: they are there, but for those that the source no longer had. 1: one of the epochs is no longer
-- its owner's, or the move was cancelled. Which batches they were is remembered where producers
-- would send them again; the target must not take them for batches of its own. What comes is due.
create function move_segments(
    under_id text, source int, source_epoch bigint, to_queue int, target_epoch bigint,
    firsts bigint[], new_firsts bigint[]
) returns int language plpgsql as $$
declare
    was_cancelled boolean;
begin
    perform 1 from replica where queue_id in (source, to_queue) order by queue_id for share;
    if not exists (select from replica where queue_id = source and epoch = source_epoch)
       or not exists (select from replica where queue_id = to_queue and epoch = target_epoch) then
        return 1;
    end if;
    insert into arrival (move_id, target, resolved) values (under_id, to_queue, true)
    on conflict do nothing;
    if not found then
        select cancelled into was_cancelled from arrival where move_id = under_id;
        return case when was_cancelled then 1 else 0 end;
    end if;
    insert into producer_mark as m (queue_id, producer, batches)
    select source, u.p, range_agg(int8range(u.b, u.b + 1))
    from segment s, unnest(s.producers, s.batches) as u (p, b)
    where s.queue_id = source and s.first_id = any (firsts) group by u.p order by u.p
    on conflict (queue_id, producer) do update
        set batches = m.batches + excluded.batches, seen_at = now();
    update segment s set queue_id = to_queue, first_id = u.n, producers = '{}', batches = '{}',
                         due_at = null
    from unnest(firsts, new_firsts) as u (f, n) where s.queue_id = source and s.first_id = u.f;
    update ack a set queue_id = to_queue, first_id = u.n
    from unnest(firsts, new_firsts) as u (f, n) where a.queue_id = source and a.first_id = u.f;
    update attempt t set queue_id = to_queue, first_id = u.n
    from unnest(firsts, new_firsts) as u (f, n) where t.queue_id = source and t.first_id = u.f;
    return 0;
end $$;

-- Whether the move has arrived; if not, it never will.
create function arrived_or_never(under_id text, to_queue int) returns boolean
language plpgsql as $$
begin
    insert into arrival (move_id, target, cancelled) values (under_id, to_queue, true)
    on conflict do nothing;
    return (select not cancelled from arrival where move_id = under_id);
end $$;

-- What was cancelled is remembered for a week: as long as nobody is paused and then goes on with it.
create or replace function forget_marks(older_than_s float8) returns bigint language sql as $$
    delete from arrival
    where case when cancelled then arrived_at < clock_timestamp() - interval '7 days'
               else resolved
                    and arrived_at < clock_timestamp() - make_interval(secs => older_than_s) end;
    update producer_mark
    set batches = batches * int8multirange(int8range(upper(batches) - 2048, null))
    where (select count(*) from unnest(batches)) > 2048;
    with gone as (
        delete from producer_mark
        where seen_at < clock_timestamp() - make_interval(secs => older_than_s) returning 1
    ) select count(*) from gone
$$;
