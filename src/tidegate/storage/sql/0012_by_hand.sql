-- What people say about services, and changes of which only the first of two at a time counts.

-- A person's word (core.by_hand); null: nothing was said.
alter table service add column by_hand jsonb;
alter type service_row add attribute by_hand jsonb;

create or replace function services(of_name text) returns setof service_row
language sql stable as $$
    select spec, version, detail, secret, by_hand from service
    where of_name is null or name = of_name order by name
$$;

-- False: something else stands there by now, or there is no such service.
create function steer_service(of_name text, new_by_hand jsonb, before jsonb)
returns boolean language plpgsql as $$
begin
    update service set by_hand = new_by_hand
    where name = of_name and by_hand is not distinct from before;
    return found;
end $$;

-- As set_scaling, if what stands there is what was read; null: something else does.
create function change_scaling(id int, new_scaling jsonb, before jsonb)
returns boolean language plpgsql as $$
declare
    stands_there jsonb;
begin
    select scaling into stands_there from queue
    where queue_id = id and alias_id is null for update;
    if found and stands_there is distinct from before then
        return null;
    end if;
    return set_scaling(id, new_scaling);
end $$;
