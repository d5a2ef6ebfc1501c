-- Topics: one segment for several queues, its payload stored once; and changes of several queues
-- in one transaction.

create table topic (
    topic_id   serial primary key,
    topic_name varchar(255) not null unique,
    created_at timestamptz not null default now()
);

create table subscription (
    topic_id      int not null references topic on delete cascade,
    queue_id      int not null references queue on delete cascade,
    -- Header → value, or values of which any will do; null: everything matches.
    header_filter jsonb,
    -- Set: the queue goes with a connection to that member.
    lives_with    int,
    primary key (topic_id, queue_id)
);
create index subscription_queue on subscription (queue_id);

-- Payloads of segments that were published to several queues. A payload and the segments that use
-- it are stored by one transaction and no segment joins later: one that no segment uses is garbage.
create table shared_payload (
    shared_id bigserial primary key,
    payload   bytea not null
);
alter table shared_payload alter column payload set storage external;

-- Set: the payload is there, and the segment's own is empty.
alter table segment add column shared_id bigint;
create index segment_shared on segment (shared_id) where shared_id is not null;

-- Topics

create type topic_row as (topic_id int, topic_name varchar, subscriptions jsonb);

create function topic_rows() returns setof topic_row language sql stable as $$
    select t.topic_id, t.topic_name, coalesce(
        (select jsonb_agg(jsonb_build_array(q.queue_id, q.queue_name, s.header_filter,
                                            s.lives_with is null) order by q.queue_id)
         from subscription s join queue q using (queue_id) where s.topic_id = t.topic_id), '[]')
    from topic t
$$;

create function create_topic(name varchar) returns setof topic_row language plpgsql as $$
begin
    insert into topic (topic_name) values (name) on conflict do nothing;
    if found then
        return query select * from topic_rows() r where r.topic_name = name;
    end if;
end $$;

create function delete_topic(name varchar) returns boolean language plpgsql as $$
begin
    delete from topic where topic_name = name;
    return found;
end $$;

create function find_topic(name varchar) returns setof topic_row language sql stable as $$
    select * from topic_rows() where topic_name = name
$$;

create function list_topics() returns setof topic_row language sql stable as $$
    select * from topic_rows() order by topic_name
$$;

-- No row: the topic is gone, or a queue for the life of a connection cannot have that name.
create function add_subscription(topic varchar, name varchar, new_filter jsonb, member int)
returns setof queue_row language plpgsql as $$
declare
    found_topic int;
    found_queue int;
begin
    -- For share: the topic stays until the subscription is there.
    select t.topic_id into found_topic from topic t where t.topic_name = topic for share;
    if not found then
        return;
    end if;
    select c.queue_id into found_queue from create_queue(name, true, '{}') c;
    if found_queue is null then
        if member is not null then
            return;
        end if;
        select q.queue_id into found_queue from queue q where q.queue_name = name for share;
        if not found then
            return;
        end if;
    end if;
    insert into subscription (topic_id, queue_id, header_filter, lives_with)
    values (found_topic, found_queue, new_filter, member)
    on conflict (topic_id, queue_id) do update set header_filter = excluded.header_filter;
    return query select * from find_queue(found_queue, null);
end $$;

create function drop_subscription(topic varchar, queue int) returns boolean language plpgsql as $$
begin
    delete from subscription s using topic t
    where t.topic_id = s.topic_id and t.topic_name = topic and s.queue_id = queue;
    return found;
end $$;

-- Queues that went with a connection to a member that is gone. Half a minute: one that was only
-- paused may come back, and its connections with it.
create function lost_subscriptions() returns setof int language sql stable as $$
    select distinct s.queue_id from subscription s left join member m on m.member_id = s.lives_with
    where s.lives_with is not null
      and (m.member_id is null or m.alive_until < clock_timestamp() - interval '30 s')
$$;

-- Who serves these queues; no row: nobody living.
create function owners(queues int[]) returns table (queue_id int, address text)
language sql stable as $$
    select r.queue_id, m.address from replica r join member m on m.member_id = r.owner
    where r.queue_id = any (queues) and m.alive_until > clock_timestamp()
$$;

-- Publishing

drop function put_message_to_all;

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
create or replace function drop_segments(in_queue int, firsts bigint[]) returns void
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

-- Delete segments of which every message is done, and what is noted of segments that are gone: a
-- transaction may finish a segment of which something else is being settled. 1: the epoch is no longer the owner's.
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

create or replace function delete_queue(id int) returns boolean language plpgsql as $$
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

-- Reading: a shared payload is fetched as if it were the segment's own

create or replace function read_lane(
    in_queue int, prio smallint, is_addressed boolean, from_id bigint, to_id bigint,
    count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, body, done, null::float8, attempts_of(in_queue, first_id)
    from (
        select s.*, a.done,
               sum(octet_length(s.body)) over (order by s.first_id) - octet_length(s.body) as before
        from (
            select *, case when shared_id is null then payload else (
                select p.payload from shared_payload p where p.shared_id = segment.shared_id
            ) end as body
            from segment
            where queue_id = in_queue and priority = prio and addressed = is_addressed
              and first_id between from_id and to_id and due_at is null
            order by first_id limit count_max
        ) s left join ack a using (queue_id, first_id)
    ) n
    where before < bytes_max
    order by first_id
$$;

create or replace function find_segments(
    in_queue int, from_id bigint, wanted_receiver int, wanted_sender int, wanted_context bigint,
    wanted_priority smallint, count_max int
) returns setof segment_row language sql stable as $$
    select s.first_id, s.priority, extract(epoch from s.arrived_at)::float8, s.lengths, s.senders,
           s.receivers, s.contexts, s.attributes,
           case when s.shared_id is null then s.payload else (
               select p.payload from shared_payload p where p.shared_id = s.shared_id
           ) end,
           a.done, null::float8, attempts_of(in_queue, s.first_id)
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.first_id >= from_id and s.due_at is null
      and (s.receivers is null or wanted_receiver = any (s.receivers))
      and (wanted_sender is null or wanted_sender = any (s.senders))
      and (wanted_context is null or wanted_context = any (s.contexts))
      and (wanted_priority is null or wanted_priority = s.priority)
      and (wanted_sender is not null or wanted_context is not null or s.receivers is not null)
    order by s.first_id limit count_max
$$;

create or replace function read_due(
    in_queue int, from_due float8, from_id bigint, count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, body, done, extract(epoch from due_at)::float8,
           attempts_of(in_queue, first_id)
    from (
        select s.*, a.done,
               sum(octet_length(s.body)) over (order by s.due_at, s.first_id)
                   - octet_length(s.body) as before
        from (
            select *, case when shared_id is null then payload else (
                select p.payload from shared_payload p where p.shared_id = segment.shared_id
            ) end as body
            from segment
            where queue_id = in_queue and due_at is not null
              and (due_at, first_id) > (to_timestamp(from_due), from_id)
            order by due_at, first_id limit count_max
        ) s left join ack a using (queue_id, first_id)
    ) n
    where before < bytes_max
    order by due_at, first_id
$$;

create or replace function lanes(in_queue int) returns table (
    priority smallint, addressed boolean, first_id bigint, last_id bigint, count bigint,
    bytes bigint, arrived_at float8
) language sql stable as $$
    select s.priority, s.addressed, min(s.first_id), max(s.first_id + s.count - 1),
           sum(s.count - coalesce((select sum(upper(r) - lower(r)) from unnest(a.done) r), 0))::bigint,
           sum(case when s.shared_id is null then octet_length(s.payload) else (
               select octet_length(p.payload) from shared_payload p where p.shared_id = s.shared_id
           ) end)::bigint,
           extract(epoch from min(s.arrived_at))::float8
    from segment s left join ack a using (queue_id, first_id)
    where s.queue_id = in_queue and s.due_at is null
    group by s.priority, s.addressed
$$;

create or replace view message as
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
       substring(case when s.shared_id is null then s.payload else (
           select p.payload from shared_payload p where p.shared_id = s.shared_id
       ) end from o.starts::int for o.length) as message
from segment s
join queue q using (queue_id)
left join ack a using (queue_id, first_id)
cross join lateral (
    select at, length, sum(length) over (order by at) - length + 1 as starts
    from unnest(s.lengths) with ordinality as u (length, at)
) o
where a.done is null or not a.done @> (o.at - 1)::int;
