-- What makes it harmless to say a thing twice: the batches of producers, which resend what was not
-- confirmed, and the ids that applications give to their messages.

-- Which batches of a producer were stored and are gone; those of living segments are there.
create table producer_mark (
    queue_id int not null,
    producer bigint not null,
    batches  int8multirange not null,
    seen_at  timestamptz not null default now(),
    primary key (queue_id, producer)
) with (fillfactor = 50);

create table dedup (
    queue_id int not null,
    dedup_id text not null,
    seen_at  timestamptz not null,
    primary key (queue_id, dedup_id)
);
create index dedup_seen on dedup (queue_id, seen_at);

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

-- Always 0: the put in the same transaction says whether the epoch is still the owner's.
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

-- A window is the queue's own, or else the default, which only the node knows.
create function forget_dedup(default_window_s float8) returns bigint language sql as $$
    with gone as (
        delete from dedup d using queue q
        where q.queue_id = d.queue_id and d.seen_at < clock_timestamp() - make_interval(
            secs => coalesce((q.policy ->> 'dedup_window_s')::float8, default_window_s))
        returning 1
    ) select count(*) from gone
$$;
