-- As set_policy, if what stands there is what was read; null: something else does.
create function change_policy(id int, new_policy jsonb, before jsonb)
returns boolean language plpgsql as $$
declare
    stands_there jsonb;
begin
    select policy into stands_there from queue where queue_id = id for update;
    if found and stands_there is distinct from before then
        return null;
    end if;
    return set_policy(id, new_policy);
end $$;
