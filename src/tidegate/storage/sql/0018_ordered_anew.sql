-- An instance that is taken from its machine is ordered anew, and at that time: whoever times how long
-- one takes from an order to an answer must not count all that it has lived before. One that only
-- waits for its first machine was ordered when it was.

create or replace function set_instance(
    id int, leader_epoch bigint, new_state text, new_weight float8, new_concurrency int,
    new_detail text, new_sessions_until float8
) returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    if new_state = 'ordered' then
        update instance set machine_id = null, address = null, free_memory_bytes = null,
            resident_bytes = null, ready_at = null,
            ordered_at = case when machine_id is null and state = 'ordered' then ordered_at
                              else clock_timestamp() end
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
        free_memory_bytes = null, resident_bytes = null, ready_at = null, detail = '',
        ordered_at = case when machine_id is null and state = 'ordered' then ordered_at
                          else clock_timestamp() end
    where instance_id = id and not settled;
    return found;
end $$;

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
        state = case when settled then state else 'ordered' end,
        ordered_at = case when settled then ordered_at else clock_timestamp() end
    where machine_id = id;
    delete from machine where machine_id = id;
    was_there := found;
    perform touch_topologies(touched);
    return was_there;
end $$;
