-- What must be remembered for as long as was promised: dedup ids in a store that has no queue of
-- theirs any more, and which dead letters were copied from another store.

-- Of an alias in another store whose last replica here has ended: its window; null: the default.
alter table topology add column dedup_window_s float8;

create or replace function end_replica(id int) returns boolean language plpgsql as $$
declare
    gone queue;
begin
    -- For update: a writer finishes before us, and the next one finds nobody.
    perform 1 from replica where queue_id = id for update;
    perform drop_all_done(id);
    if exists (select from segment where queue_id = id)
       or exists (select from departure where source = id) then
        return false;
    end if;
    delete from attempt where queue_id = id;
    select * into gone from queue where queue_id = id;
    perform touch_topologies(array[gone.alias_id]);
    update topology set dedup_window_s = (gone.policy ->> 'dedup_window_s')::float8
    where alias_id = gone.alias_id;
    delete from queue where queue_id = id;
    return true;
end $$;

-- The alias may be in another store: then one of its replicas says what its window is, or the last
-- one has said it.
create or replace function forget_dedup(default_window_s float8) returns bigint language sql as $$
    with gone as (
        delete from dedup d where d.seen_at < clock_timestamp() - make_interval(secs => coalesce((
            select coalesce((q.policy ->> 'dedup_window_s')::float8, default_window_s) from queue q
            where q.queue_id = d.queue_id or q.alias_id = d.queue_id limit 1
        ), (
            select t.dedup_window_s from topology t where t.alias_id = d.queue_id
        ), default_window_s)) returning 1
    ) select count(*) from gone
$$;

-- Whether a queue has, or has had, replicas: their stores may remember dedup ids of its.
create function was_alias(id int) returns boolean language sql stable as $$
    select exists (select from topology where alias_id = id)
$$;

-- Producers below 0 stand for queues in other stores whose dead letters are copied here, in any
-- order: all that is known of them is which were copied, so of many runs some are forgotten, and
-- of the others nothing is assumed.
create or replace function forget_marks(older_than_s float8) returns bigint language sql as $$
    delete from arrival
    where case when cancelled then arrived_at < clock_timestamp() - interval '7 days'
               else resolved
                    and arrived_at < clock_timestamp() - make_interval(secs => older_than_s) end;
    update producer_mark
    set batches = batches * int8multirange(int8range(upper(batches) - 2048, null))
    where producer >= 0 and (select count(*) from unnest(batches)) > 2048;
    update producer_mark
    set batches = (select range_agg(r) from (
        select r from unnest(batches) as r order by r desc limit 4096) as kept)
    where producer < 0 and (select count(*) from unnest(batches)) > 4096;
    with gone as (
        delete from producer_mark
        where seen_at < clock_timestamp() - make_interval(secs => older_than_s) returning 1
    ) select count(*) from gone
$$;
