-- Messages as segments: one row holds what one commit stored for a queue and a priority.
-- Inserted once, deleted whole; acknowledgements touch a narrow row beside it.

create table segment (
    queue_id   int not null,
    first_id   bigint not null,
    priority   smallint not null,
    -- Addressed messages and messages for anyone never share a segment.
    addressed  boolean not null,
    count      int not null,
    arrived_at timestamptz not null,
    lengths    int[] not null,
    -- Columns with one element speak for all messages; null: none has it.
    senders    int[] not null,
    receivers  int[],
    contexts   bigint[],
    attributes jsonb,
    -- Which batches of which producers these messages are, so that a resend is stored once.
    producers  bigint[] not null,
    batches    bigint[] not null,
    payload    bytea not null,
    primary key (queue_id, first_id)
);
create index segment_lane on segment (queue_id, priority, addressed, first_id);
-- Payloads are not worth compressing and are read in slices.
alter table segment alter column payload set storage external;
alter table segment set (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 2000,
                         toast.autovacuum_vacuum_scale_factor = 0.0,
                         toast.autovacuum_vacuum_threshold = 200000);

create table ack (
    queue_id int not null,
    first_id bigint not null,
    done     int4multirange not null,
    primary key (queue_id, first_id)
) with (fillfactor = 70);

-- Which batches of a producer were stored and are gone; those of living segments are there.
create table producer_mark (
    queue_id int not null,
    producer bigint not null,
    batches  int8multirange not null,
    seen_at  timestamptz not null default now(),
    primary key (queue_id, producer)
) with (fillfactor = 50);

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
       s.attributes -> (o.at - 1)::int ->> 0 as content_type,
       s.attributes -> (o.at - 1)::int -> 1 as headers,
       substring(s.payload from o.starts::int for o.length) as message
from segment s
join queue q using (queue_id)
left join ack a using (queue_id, first_id)
cross join lateral (
    select at, length, sum(length) over (order by at) - length + 1 as starts
    from unnest(s.lengths) with ordinality as u (length, at)
) o
where a.done is null or not a.done @> (o.at - 1)::int;

-- Store a segment. 0: stored, 1: the epoch is no longer the owner's.
create function put_segment(
    in_queue int, in_epoch bigint, first bigint, prio smallint, arrived float8, len int[],
    snd int[], rcv int[], ctx bigint[], att jsonb, body bytea, prods bigint[], nums bigint[]
) returns int language plpgsql as $$
begin
    perform 1 from replica where queue_id = in_queue and epoch = in_epoch for share;
    if not found then
        return 1;
    end if;
    insert into segment (queue_id, first_id, priority, addressed, count, arrived_at, lengths,
                         senders, receivers, contexts, attributes, producers, batches, payload)
    values (in_queue, first, prio, rcv is not null, cardinality(len), to_timestamp(arrived), len,
            snd, rcv, ctx, att, prods, nums, body);
    return 0;
end $$;

-- One message into several queues, all or none. Returns the queue that stood in the way, or null.
create function put_message_to_all(
    queues int[], epochs bigint[], firsts bigint[], prio smallint, arrived float8, snd int,
    rcv int, ctx bigint, att jsonb, body bytea, prod bigint, num bigint
) returns int language plpgsql as $$
declare
    bad int;
begin
    perform 1 from replica r where r.queue_id = any (queues) order by r.queue_id for share;
    select u.q into bad from unnest(queues, epochs) as u (q, e)
    where not exists (select from replica r where r.queue_id = u.q and r.epoch = u.e) limit 1;
    if bad is not null then
        return bad;
    end if;
    insert into segment (queue_id, first_id, priority, addressed, count, arrived_at, lengths,
                         senders, receivers, contexts, attributes, producers, batches, payload)
    select u.q, u.f, prio, rcv is not null, 1, to_timestamp(arrived), array [length(body)],
           array [snd], case when rcv is null then null else array [rcv] end,
           case when ctx is null then null else array [ctx] end, att, array [prod], array [num],
           body
    from unnest(queues, firsts) as u (q, f);
    return null;
end $$;

-- Delete segments, and remember which batches they were.
create function drop_segments(in_queue int, firsts bigint[]) returns void language sql as $$
    with gone as (
        delete from segment where queue_id = in_queue and first_id = any (firsts)
        returning producers, batches
    )
    insert into producer_mark as m (queue_id, producer, batches)
    select in_queue, u.p, range_agg(int8range(u.b, u.b + 1))
    from gone, unnest(gone.producers, gone.batches) as u (p, b) group by u.p order by u.p
    on conflict (queue_id, producer) do update
        set batches = m.batches + excluded.batches, seen_at = now()
$$;

-- Acknowledge: whole segments are deleted, of others the done offsets are kept.
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

-- Which of these segments are stored: the way out of a commit whose answer was lost.
create function stored_segments(in_queue int, firsts bigint[]) returns setof bigint
language sql stable as $$
    select first_id from segment where queue_id = in_queue and first_id = any (firsts)
$$;

create type segment_row as (
    first_id bigint, priority smallint, arrived_at float8, lengths int[], senders int[],
    receivers int[], contexts bigint[], attributes jsonb, payload bytea, done int4multirange
);

-- The next segments of a lane in order, until their payloads reach `bytes_max`.
create function read_lane(
    in_queue int, prio smallint, is_addressed boolean, from_id bigint, to_id bigint,
    count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, payload, done
    from (
        select s.*, a.done,
               sum(octet_length(s.payload)) over (order by s.first_id)
                   - octet_length(s.payload) as before
        from (
            select * from segment
            where queue_id = in_queue and priority = prio and addressed = is_addressed
              and first_id between from_id and to_id
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
           s.receivers, s.contexts, s.attributes, s.payload, a.done
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.first_id >= from_id
      and (s.receivers is null or wanted_receiver = any (s.receivers))
      and (wanted_sender is null or wanted_sender = any (s.senders))
      and (wanted_context is null or wanted_context = any (s.contexts))
      and (wanted_priority is null or wanted_priority = s.priority)
      and (wanted_sender is not null or wanted_context is not null or s.receivers is not null)
    order by s.first_id limit count_max
$$;

-- What a new owner finds: one row per lane.
create function lanes(in_queue int) returns table (
    priority smallint, addressed boolean, first_id bigint, last_id bigint, count bigint, bytes bigint
) language sql stable as $$
    select s.priority, s.addressed, min(s.first_id), max(s.first_id + s.count - 1),
           sum(s.count - coalesce((select sum(upper(r) - lower(r)) from unnest(a.done) r), 0))::bigint,
           sum(octet_length(s.payload))::bigint
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue
    group by s.priority, s.addressed
$$;

create function marks(in_queue int) returns table (producer bigint, batches int8multirange)
language sql stable as $$
    select u.p, range_agg(u.b) from (
        select m.producer, unnest(m.batches) from producer_mark m where m.queue_id = in_queue
        union all
        select v.p, int8range(v.b, v.b + 1)
        from segment s, unnest(s.producers, s.batches) as v (p, b) where s.queue_id = in_queue
    ) as u (p, b) group by u.p
$$;

-- Producers that have been silent; and of those that put to several queues, and so leave gaps
-- in each, all but the last batches.
create function forget_marks(older_than_s float8) returns bigint language sql as $$
    update producer_mark
    set batches = batches * int8multirange(int8range(upper(batches) - 2048, null))
    where (select count(*) from unnest(batches)) > 2048;
    with gone as (
        delete from producer_mark
        where seen_at < clock_timestamp() - make_interval(secs => older_than_s) returning 1
    ) select count(*) from gone
$$;

-- Drop every segment with an id below `below`, but for those in `kept`.
create function purge_queue(
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
    perform drop_segments(in_queue, array(
        select first_id from segment
        where queue_id = in_queue and first_id < below and not first_id = any (kept)));
    return 0;
end $$;

create function delete_queue(id int) returns boolean language plpgsql as $$
begin
    -- For update first: a writer that holds the row for share finishes before us.
    perform 1 from replica where queue_id = id for update;
    delete from queue where queue_id = id;
    if not found then
        return false;
    end if;
    delete from ack where queue_id = id;
    delete from segment where queue_id = id;
    delete from producer_mark where queue_id = id;
    return true;
end $$;

-- Queues with a message that the client could read, as the store sees them.
create function active_queues(client int) returns table (
    queue_id int, queue_name varchar, durable boolean
) language sql stable as $$
    select q.queue_id, q.queue_name, q.durable from queue q
    where exists (select from segment s where s.queue_id = q.queue_id
                  and (s.receivers is null or client = any (s.receivers)))
    order by q.queue_name
$$;
