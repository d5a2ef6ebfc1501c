-- Messages as segments: one row holds what one commit stored for a queue and a priority.
-- Inserted once, deleted whole; acknowledgements and failures touch narrow rows beside it.

-- Payloads of segments that were published to several queues. A payload and the segments that use
-- it are stored by one transaction and no segment joins later: one that no segment uses is garbage.
create table shared_payload (
    shared_id bigserial primary key,
    payload   bytea not null
);

create table segment (
    queue_id   int not null,
    first_id   bigint not null,
    priority   smallint not null,
    -- Addressed messages and messages for anyone never share a segment.
    addressed  boolean not null,
    count      int not null,
    arrived_at timestamptz not null,
    -- Not before; null: at once. All messages of a segment are due together.
    due_at     timestamptz,
    -- One element per message; senders and receivers may have one that speaks for all.
    -- Null: no message has it.
    lengths    int[] not null,
    senders    int[] not null,
    receivers  int[],
    contexts   bigint[],
    attributes jsonb,
    -- Which batches of which producers these messages are, so that a resend is stored once.
    producers  bigint[] not null,
    batches    bigint[] not null,
    -- Set: the payload is there, and the segment's own is empty.
    shared_id  bigint,
    payload    bytea not null,
    primary key (queue_id, first_id)
) with (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000,
        toast.autovacuum_vacuum_scale_factor = 0.0, toast.autovacuum_vacuum_threshold = 200000);
create index segment_lane on segment (queue_id, priority, addressed, first_id);
create index segment_due on segment (queue_id, due_at, first_id) where due_at is not null;
create index segment_shared on segment (shared_id) where shared_id is not null;

-- Payloads are not worth compressing and are read in slices. (PostgreSQL 15 takes it only here.)
alter table shared_payload alter column payload set storage external;
alter table segment alter column payload set storage external;

-- Which messages of a segment are done, as offsets; no row: none.
create table ack (
    queue_id int not null,
    first_id bigint not null,
    done     int4multirange not null,
    primary key (queue_id, first_id)
) with (fillfactor = 70);

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

-- A segment with its payload wherever that lies. A subquery rather than a join: nobody pays for it
-- who does not ask for the payload. `ack` is joined by those who read: behind their limit, so that
-- it is looked up for the segments they get and not merged from the queue's first on.
create view stored_segment as
select s.queue_id, s.first_id, s.priority, s.addressed, s.count, s.arrived_at, s.due_at, s.lengths,
       s.senders, s.receivers, s.contexts, s.attributes,
       case when s.shared_id is null then s.payload else (
           select p.payload from shared_payload p where p.shared_id = s.shared_id
       ) end as payload
from segment s;

-- What an operator reads: every stored message that is not acknowledged.
create view message as
select s.first_id + o.at - 1 as message_id,
       s.queue_id,
       q.queue_name,
       s.senders[least(o.at, cardinality(s.senders))] as sender_id,
       s.receivers[least(o.at, cardinality(s.receivers))] as receiver_id,
       s.contexts[o.at] as context,
       s.priority,
       s.arrived_at as time_of_arrival,
       -- A message that failed waits for its own time.
       coalesce(t.due_at, s.due_at) as due_at,
       s.attributes -> (o.at - 1)::int ->> 0 as content_type,
       s.attributes -> (o.at - 1)::int -> 1 as headers,
       substring(s.payload from o.starts::int for o.length) as message
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

-- Storing

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

-- The same messages into several queues; `fence` has been called. What is not for a queue is done
-- from the start, so that all share one payload.
create function publish_segment(
    queues int[], firsts bigint[], dones int4multirange[], prio smallint, arrived float8, len int[],
    snd int[], rcv int[], ctx bigint[], att jsonb, body bytea, prods bigint[], nums bigint[],
    due float8
) returns int language plpgsql as $$
declare
    shared bigint;
begin
    if cardinality(queues) > 1 then
        insert into shared_payload (payload) values (body) returning shared_id into shared;
        body := '';
    end if;
    insert into segment (queue_id, first_id, priority, addressed, count, arrived_at, lengths,
                         senders, receivers, contexts, attributes, producers, batches, payload,
                         due_at, shared_id)
    select u.q, u.f, prio, rcv is not null, cardinality(len), to_timestamp(arrived), len,
           snd, rcv, ctx, att, prods, nums, body, to_timestamp(due), shared
    from unnest(queues, firsts) as u (q, f);
    insert into ack (queue_id, first_id, done)
    select u.q, u.f, u.d from unnest(queues, firsts, dones) as u (q, f, d) where not isempty(u.d);
    return 0;
end $$;

-- Which of these segments are stored: the way out of a commit whose answer was lost.
create function stored_segments(in_queue int, firsts bigint[]) returns setof bigint
language sql stable as $$
    select first_id from segment where queue_id = in_queue and first_id = any (firsts)
$$;

-- Settling

-- Of these payloads, delete those that no segment uses. Two transactions that delete the last two
-- segments see each other's: then neither does it, and `free_payloads` has to.
create function free_payloads_of(ids bigint[]) returns bigint language sql as $$
    with gone as (
        delete from shared_payload p where p.shared_id = any (ids)
          and not exists (select from segment s where s.shared_id = p.shared_id)
        returning 1
    ) select count(*) from gone
$$;

create function free_payloads() returns bigint language sql as $$
    with gone as (
        delete from shared_payload p
        where not exists (select from segment s where s.shared_id = p.shared_id)
        returning 1
    ) select count(*) from gone
$$;

-- Delete segments, and remember which batches they were.
create function drop_segments(in_queue int, firsts bigint[]) returns void
language plpgsql as $$
declare
    shared bigint[];
begin
    with gone as (
        delete from segment where queue_id = in_queue and first_id = any (firsts)
        returning producers, batches, shared_id
    ), marked as (
        insert into producer_mark as m (queue_id, producer, batches)
        select in_queue, u.p, range_agg(int8range(u.b, u.b + 1))
        from gone, unnest(gone.producers, gone.batches) as u (p, b) group by u.p order by u.p
        on conflict (queue_id, producer) do update
            set batches = m.batches + excluded.batches, seen_at = now()
    )
    select array_agg(shared_id) filter (where shared_id is not null) into shared from gone;
    if shared is not null then
        perform free_payloads_of(shared);
    end if;
end $$;

-- Acknowledge: whole segments are deleted, of others the done offsets are kept. 1: the epoch is no
-- longer the owner's.
create function settle(
    in_queue int, in_epoch bigint, finished bigint[], part_first bigint[],
    part_done int4multirange[]
) returns int language plpgsql as $$
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    if cardinality(finished) > 0 then
        perform drop_segments(in_queue, finished);
        delete from ack where queue_id = in_queue and first_id = any (finished);
    end if;
    if cardinality(part_first) > 0 then
        insert into ack as a (queue_id, first_id, done)
        select in_queue, u.f, u.d from unnest(part_first, part_done) as u (f, d)
        on conflict (queue_id, first_id) do update set done = a.done + excluded.done;
    end if;
    return 0;
end $$;

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

-- Delete segments of which every message is done, and what is noted of segments that are gone: a
-- transaction may finish a segment of which something else is being settled. 1: the epoch is no
-- longer the owner's.
create function drop_done(in_queue int, in_epoch bigint) returns int language plpgsql as $$
declare
    finished bigint[];
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
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
    return 0;
end $$;

-- Drop every segment with an id below `below`, but for those in `kept`. 1: the epoch is no longer
-- the owner's.
create function purge_queue(
    in_queue int, in_epoch bigint, below bigint, kept bigint[]
) returns int
language plpgsql as $$
begin
    -- For update: acknowledgements under way take the same rows in another order, and would meet us.
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for update;
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

-- A queue with everything that is stored for it.
create function delete_queue(id int) returns boolean language plpgsql as $$
declare
    shared bigint[];
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
    select array_agg(shared_id) into shared from segment
    where queue_id = id and shared_id is not null;
    delete from segment where queue_id = id;
    delete from producer_mark where queue_id = id;
    perform free_payloads_of(shared);
    return true;
end $$;

-- Reading

create type segment_row as (
    first_id bigint, priority smallint, arrived_at float8, lengths int[], senders int[],
    receivers int[], contexts bigint[], attributes jsonb, payload bytea, done int4multirange,
    due_at float8, attempts jsonb
);

-- Failed deliveries of a segment, as [[offset, attempts, due, failures], …]; null: none.
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
        select next.*, a.done,
               sum(octet_length(payload)) over (order by first_id) - octet_length(payload)
                   as bytes_before
        from (
            select * from stored_segment
            where queue_id = in_queue and priority = prio and addressed = is_addressed
              and first_id between from_id and to_id and due_at is null
            order by first_id limit count_max
        ) next left join ack a using (queue_id, first_id)
    ) summed
    where bytes_before < bytes_max
    order by first_id
$$;

-- Segments for later in the order in which they are due, from behind (`from_due`, `from_id`),
-- until their payloads reach `bytes_max`.
create function read_due(
    in_queue int, from_due float8, from_id bigint, count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, payload, done, extract(epoch from due_at)::float8,
           attempts_of(in_queue, first_id)
    from (
        select next.*, a.done,
               sum(octet_length(payload)) over (order by due_at, first_id) - octet_length(payload)
                   as bytes_before
        from (
            select * from stored_segment
            where queue_id = in_queue and due_at is not null
              and (due_at, first_id) > (to_timestamp(from_due), from_id)
            order by due_at, first_id limit count_max
        ) next left join ack a using (queue_id, first_id)
    ) summed
    where bytes_before < bytes_max
    order by due_at, first_id
$$;

-- The first segments beyond memory that hold a message a selective read wants.
create function find_segments(
    in_queue int, from_id bigint, wanted_receiver int, wanted_sender int, wanted_context bigint,
    wanted_priority smallint, count_max int
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, payload, done, null::float8, attempts_of(in_queue, first_id)
    from stored_segment left join ack using (queue_id, first_id)
    where queue_id = in_queue and first_id >= from_id and due_at is null
      and (receivers is null or wanted_receiver = any (receivers))
      and (wanted_sender is null or wanted_sender = any (senders))
      and (wanted_context is null or wanted_context = any (contexts))
      and (wanted_priority is null or wanted_priority = priority)
      and (wanted_sender is not null or wanted_context is not null or receivers is not null)
    order by first_id limit count_max
$$;

-- Queues with a message that the client could read, as the store sees them.
create function active_queues(client int) returns setof queue_row language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy from queue q
    where exists (select from segment s where s.queue_id = q.queue_id
                  and (s.receivers is null or client = any (s.receivers))
                  and (s.due_at is null or s.due_at <= clock_timestamp()))
    order by q.queue_name
$$;

-- What a new owner finds

-- One row per lane: what could be delivered now.
create function lanes(in_queue int) returns table (
    priority smallint, addressed boolean, first_id bigint, last_id bigint, count bigint,
    bytes bigint, arrived_at float8
) language sql stable as $$
    select s.priority, s.addressed, min(s.first_id), max(s.first_id + s.count - 1),
           -- Most segments have nothing done: an empty subquery for each would double the time.
           sum(s.count - case when a.done is null then 0 else (
               select sum(upper(r) - lower(r)) from unnest(a.done) r
           ) end)::bigint,
           sum(octet_length(s.payload)),
           extract(epoch from min(s.arrived_at))::float8
    from stored_segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.due_at is null
    group by s.priority, s.addressed
$$;

-- How many messages wait for their time.
create function count_due(in_queue int) returns bigint language sql stable as $$
    select coalesce(sum(s.count - case when a.done is null then 0 else (
        select sum(upper(r) - lower(r)) from unnest(a.done) r
    ) end), 0)::bigint
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.due_at is not null
$$;

-- Which batches of which producers were stored, whether their messages are still there or not.
create function marks(in_queue int) returns table (producer bigint, batches int8multirange)
language sql stable as $$
    select u.p, range_agg(u.b) from (
        select m.producer, unnest(m.batches) from producer_mark m where m.queue_id = in_queue
        union all
        select v.p, int8range(v.b, v.b + 1) from (
            -- Unnested side by side here: twice as fast as a function in `from` for each segment.
            select unnest(s.producers), unnest(s.batches) from segment s where s.queue_id = in_queue
        ) as v (p, b)
    ) as u (p, b) group by u.p
$$;
