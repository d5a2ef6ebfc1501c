-- What a queue promises beyond storing: policies, failed deliveries, messages for later, ids that
-- make a put harmless to repeat, and changes of several queues at once.

alter table queue add column policy jsonb not null default '{}';

-- Not before; null: at once. All messages of a segment are due together.
alter table segment add column due_at timestamptz;
create index segment_due on segment (queue_id, due_at, first_id) where due_at is not null;

-- Messages that were delivered and came back: how often, why, and not before when.
create table attempt (
    queue_id  int not null,
    first_id  bigint not null,
    at_offset int not null,
    attempts  int not null,
    due_at    timestamptz,
    failures  jsonb not null,
    primary key (queue_id, first_id, at_offset)
);

create table dedup (
    queue_id int not null,
    dedup_id text not null,
    seen_at  timestamptz not null,
    primary key (queue_id, dedup_id)
);
create index dedup_seen on dedup (queue_id, seen_at);

-- Queues with their policies

drop function create_queue, find_queue, list_queues, locate_queue, active_queues;

create type queue_row as (queue_id int, queue_name varchar, durable boolean, policy jsonb);

create function create_queue(name varchar, is_durable boolean, with_policy jsonb)
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
    return query select made.queue_id, made.queue_name, made.durable, made.policy;
end $$;

create function set_policy(id int, new_policy jsonb) returns boolean language plpgsql as $$
begin
    update queue set policy = new_policy where queue_id = id;
    return found;
end $$;

create function find_queue(id int, name varchar) returns setof queue_row
language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy from queue q
    where q.queue_id = id or q.queue_name = name
$$;

create function list_queues() returns setof queue_row language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy from queue q order by q.queue_name
$$;

create function locate_queue(id int) returns table (
    queue_id int, queue_name varchar, durable boolean, policy jsonb,
    owner int, address text, alive boolean
) language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy, r.owner, m.address,
           coalesce(m.alive_until > clock_timestamp(), false)
    from queue q join replica r using (queue_id) left join member m on m.member_id = r.owner
    where q.queue_id = id
$$;

create function active_queues(client int) returns setof queue_row language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy from queue q
    where exists (select from segment s where s.queue_id = q.queue_id
                  and (s.receivers is null or client = any (s.receivers))
                  and (s.due_at is null or s.due_at <= clock_timestamp()))
    order by q.queue_name
$$;

-- Segments with a time before which they are nobody's

drop function put_segment;

-- Store a segment. 0: stored, 1: the epoch is no longer the owner's.
create function put_segment(
    in_queue int, in_epoch bigint, first bigint, prio smallint, arrived float8, len int[],
    snd int[], rcv int[], ctx bigint[], att jsonb, body bytea, prods bigint[], nums bigint[],
    due float8
) returns int language plpgsql as $$
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    insert into segment (queue_id, first_id, priority, addressed, count, arrived_at, lengths,
                         senders, receivers, contexts, attributes, producers, batches, payload,
                         due_at)
    values (in_queue, first, prio, rcv is not null, cardinality(len), to_timestamp(arrived), len,
            snd, rcv, ctx, att, prods, nums, body, to_timestamp(due));
    return 0;
end $$;

drop function read_lane, find_segments, lanes;
drop type segment_row;
create type segment_row as (
    first_id bigint, priority smallint, arrived_at float8, lengths int[], senders int[],
    receivers int[], contexts bigint[], attributes jsonb, payload bytea, done int4multirange,
    due_at float8, attempts jsonb
);

-- Failed deliveries of a segment, as [[offset, attempts, due, failures], ...]; null: none.
create function attempts_of(in_queue int, first bigint) returns jsonb language sql stable as $$
    select jsonb_agg(jsonb_build_array(at_offset, attempts, extract(epoch from due_at), failures))
    from attempt where queue_id = in_queue and first_id = first
$$;

-- The next segments of a lane in order, until their payloads reach `bytes_max`.
create function read_lane(
    in_queue int, prio smallint, is_addressed boolean, from_id bigint, to_id bigint,
    count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, payload, done, null::float8, attempts_of(in_queue, first_id)
    from (
        select s.*, a.done,
               sum(octet_length(s.payload)) over (order by s.first_id)
                   - octet_length(s.payload) as before
        from (
            select * from segment
            where queue_id = in_queue and priority = prio and addressed = is_addressed
              and first_id between from_id and to_id and due_at is null
            order by first_id limit count_max
        ) s left join ack a using (queue_id, first_id)
    ) n
    where before < bytes_max
    order by first_id
$$;

-- The first segments beyond memory that hold a message a selective read wants.
create function find_segments(
    in_queue int, from_id bigint, wanted_receiver int, wanted_sender int, wanted_context bigint,
    wanted_priority smallint, count_max int
) returns setof segment_row language sql stable as $$
    select s.first_id, s.priority, extract(epoch from s.arrived_at)::float8, s.lengths, s.senders,
           s.receivers, s.contexts, s.attributes, s.payload, a.done, null::float8,
           attempts_of(in_queue, s.first_id)
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.first_id >= from_id and s.due_at is null
      and (s.receivers is null or wanted_receiver = any (s.receivers))
      and (wanted_sender is null or wanted_sender = any (s.senders))
      and (wanted_context is null or wanted_context = any (s.contexts))
      and (wanted_priority is null or wanted_priority = s.priority)
      and (wanted_sender is not null or wanted_context is not null or s.receivers is not null)
    order by s.first_id limit count_max
$$;

-- Segments for later in the order in which they are due, from behind (`from_due`, `from_id`).
create function read_due(
    in_queue int, from_due float8, from_id bigint, count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, payload, done, extract(epoch from due_at)::float8,
           attempts_of(in_queue, first_id)
    from (
        select s.*, a.done,
               sum(octet_length(s.payload)) over (order by s.due_at, s.first_id)
                   - octet_length(s.payload) as before
        from (
            select * from segment
            where queue_id = in_queue and due_at is not null
              and (due_at, first_id) > (to_timestamp(from_due), from_id)
            order by due_at, first_id limit count_max
        ) s left join ack a using (queue_id, first_id)
    ) n
    where before < bytes_max
    order by due_at, first_id
$$;

-- How many messages wait for their time.
create function count_due(in_queue int) returns bigint language sql stable as $$
    select coalesce(sum(
        s.count - coalesce((select sum(upper(r) - lower(r)) from unnest(a.done) r), 0)), 0)::bigint
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.due_at is not null
$$;

-- What a new owner finds: one row per lane.
create function lanes(in_queue int) returns table (
    priority smallint, addressed boolean, first_id bigint, last_id bigint, count bigint,
    bytes bigint, arrived_at float8
) language sql stable as $$
    select s.priority, s.addressed, min(s.first_id), max(s.first_id + s.count - 1),
           sum(s.count - coalesce((select sum(upper(r) - lower(r)) from unnest(a.done) r), 0))::bigint,
           sum(octet_length(s.payload))::bigint,
           extract(epoch from min(s.arrived_at))::float8
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.due_at is null
    group by s.priority, s.addressed
$$;

-- Failed deliveries

-- Note deliveries that failed, and forget those of segments in `gone`. 1: no longer the owner's.
create function note_attempts(
    in_queue int, in_epoch bigint, gone bigint[], firsts bigint[], offsets int[], counts int[],
    dues float8[], reasons jsonb
) returns int language plpgsql as $$
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    delete from attempt where queue_id = in_queue and first_id = any (gone);
    insert into attempt (queue_id, first_id, at_offset, attempts, due_at, failures)
    select in_queue, u.f, u.o, u.c, to_timestamp(u.d), reasons -> (u.at - 1)::int
    from unnest(firsts, offsets, counts, dues) with ordinality as u (f, o, c, d, at)
    on conflict (queue_id, first_id, at_offset) do update
        set attempts = excluded.attempts, due_at = excluded.due_at, failures = excluded.failures;
    return 0;
end $$;

-- Dedup ids

create function remember_dedup(in_queue int, in_epoch bigint, ids jsonb, at float8) returns int
language sql as $$
    insert into dedup (queue_id, dedup_id, seen_at)
    select in_queue, i, to_timestamp(at) from jsonb_array_elements_text(ids) as i
    where exists (select from replica where queue_id = in_queue and epoch = in_epoch)
    on conflict (queue_id, dedup_id) do update set seen_at = excluded.seen_at;
    select 0
$$;

create function dedup_ids(in_queue int, newer_than_s float8)
returns table (dedup_id text, age_s float8) language sql stable as $$
    select d.dedup_id, extract(epoch from clock_timestamp() - d.seen_at)::float8 from dedup d
    where d.queue_id = in_queue
      and d.seen_at > clock_timestamp() - make_interval(secs => newer_than_s)
$$;

create function forget_dedup(default_window_s float8) returns bigint language sql as $$
    with gone as (
        delete from dedup d using queue q
        where q.queue_id = d.queue_id and d.seen_at < clock_timestamp() - make_interval(
            secs => coalesce((q.policy ->> 'dedup_window_s')::float8, default_window_s))
        returning 1
    ) select count(*) from gone
$$;

-- Several queues at once

-- All of these epochs are their owners', until this transaction ends; else it ends here.
create function fence(queues int[], epochs bigint[]) returns int language plpgsql as $$
begin
    perform 1 from replica r where r.queue_id = any (queues) order by r.queue_id for share;
    if exists (select from unnest(queues, epochs) as u (q, e)
               where not exists (select from replica r where r.queue_id = u.q and r.epoch = u.e))
    then
        raise exception 'a queue has a new owner' using errcode = 'TG001';
    end if;
    return 0;
end $$;

-- The end

create or replace function purge_queue(
    in_queue int, in_epoch bigint, below bigint, kept bigint[]
) returns int
language plpgsql as $$
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    delete from ack
    where queue_id = in_queue and first_id < below and not first_id = any (kept);
    delete from attempt
    where queue_id = in_queue and first_id < below and not first_id = any (kept);
    perform drop_segments(in_queue, array(
        select first_id from segment
        where queue_id = in_queue and first_id < below and not first_id = any (kept)));
    return 0;
end $$;

create or replace function delete_queue(id int) returns boolean language plpgsql as $$
begin
    -- For update first: a writer that holds the row for share finishes before us.
    perform 1 from replica where queue_id = id for update;
    delete from queue where queue_id = id;
    if not found then
        return false;
    end if;
    delete from ack where queue_id = id;
    delete from attempt where queue_id = id;
    delete from dedup where queue_id = id;
    delete from segment where queue_id = id;
    delete from producer_mark where queue_id = id;
    return true;
end $$;
