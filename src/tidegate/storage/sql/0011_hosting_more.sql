-- What the next leader is to know of a service, what an instance holds in memory, and until when
-- one that drains still has its sessions.

-- What the leader has decided last (control.kept_configuration); null: nothing yet.
alter table service add column configuration bytea;

create function keep_configuration(of_service text, new_document bytea, leader_epoch bigint)
returns void language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    update service set configuration = new_document where name = of_service;
end $$;

alter table instance add column resident_bytes float8;
-- By the leader's clock, in seconds since 1970; null: none, or it does not drain.
alter table instance add column sessions_until float8;
alter type instance_row add attribute resident_bytes float8, add attribute sessions_until float8;

create or replace function instances(of_service text, id int) returns setof instance_row
language sql stable as $$
    select i.instance_id, i.service, i.version, i.state, i.machine_id, i.address, i.weight,
           i.concurrency, i.free_memory_bytes, extract(epoch from i.ordered_at)::float8,
           extract(epoch from i.ready_at)::float8, i.detail, i.resident_bytes, i.sessions_until
    from instance i
    where (of_service is null or i.service = of_service) and (id is null or i.instance_id = id)
    order by i.instance_id
$$;

drop function set_instance(int, bigint, text, float8, int, text);
create function set_instance(
    id int, leader_epoch bigint, new_state text, new_weight float8, new_concurrency int,
    new_detail text, new_sessions_until float8
) returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    if new_state = 'ordered' then
        update instance set machine_id = null, address = null, free_memory_bytes = null,
            resident_bytes = null, ready_at = null
        where instance_id = id;
    end if;
    update instance set
        state = coalesce(new_state, state),
        settled = case when new_state is null then settled
                       else new_state in ('draining', 'failed') end,
        sessions_until = case when new_state is null then sessions_until
                              when new_state = 'draining' then new_sessions_until end,
        weight = coalesce(new_weight, weight),
        concurrency = coalesce(new_concurrency, concurrency),
        detail = coalesce(new_detail, detail)
    where instance_id = id;
    return found;
end $$;

drop function report_instance(int, int, text, text, float8, text);
-- False: nobody wants it there.
create function report_instance(
    id int, on_machine int, new_state text, new_address text, new_free float8, new_detail text,
    new_resident float8
) returns boolean language plpgsql as $$
declare
    known instance;
begin
    -- Asked once a second for each: nothing is written when nothing is new.
    select * into known from instance where instance_id = id and machine_id = on_machine;
    if not found then
        return false;
    end if;
    if (known.address, known.free_memory_bytes, known.resident_bytes)
           is not distinct from (new_address, new_free, new_resident)
       and (known.settled or (known.state, known.detail) = (new_state, new_detail))
       and (new_state <> 'draining' or known.sessions_until is null) then
        return true;
    end if;
    update instance set
        address = new_address, free_memory_bytes = new_free, resident_bytes = new_resident,
        state = case when settled then state else new_state end,
        detail = case when settled then detail else new_detail end,
        -- Its machine ends it: no session can go on there.
        sessions_until = case when new_state <> 'draining' then sessions_until end,
        ready_at = case when settled then ready_at
                        when new_state <> 'ready' then null
                        else coalesce(ready_at, clock_timestamp()) end
    where instance_id = id and machine_id = on_machine;
    return found;
end $$;

create or replace function assign_instance(id int, to_machine int, leader_epoch bigint)
returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    -- In the order of remove_machine.
    perform 1 from instance where instance_id = id for update;
    perform 1 from machine where machine_id = to_machine for share;
    if not found then
        return false;
    end if;
    perform 1 from instance where instance_id = id and machine_id = to_machine;
    if found then
        return true;
    end if;
    update instance set machine_id = to_machine, state = 'ordered', address = null,
        free_memory_bytes = null, resident_bytes = null, ready_at = null, detail = ''
    where instance_id = id and not settled;
    return found;
end $$;

-- What it was to serve, anybody may; instances are ordered anew, but for those that were to end.
create or replace function remove_machine(id int, leader_epoch bigint)
returns boolean language plpgsql as $$
declare
    touched int[];
    was_there boolean;
begin
    perform fence_leader(leader_epoch);
    perform 1 from place where machine_id = id order by alias_id, number for update;
    touched := array(select alias_id from place where machine_id = id);
    update place set machine_id = null where machine_id = id;
    perform 1 from instance where machine_id = id order by instance_id for update;
    delete from instance where machine_id = id and state = 'draining';
    update instance set machine_id = null, address = null, free_memory_bytes = null,
        resident_bytes = null, ready_at = null,
        state = case when settled then state else 'ordered' end
    where machine_id = id;
    delete from machine where machine_id = id;
    was_there := found;
    perform touch_topologies(touched);
    return was_there;
end $$;
