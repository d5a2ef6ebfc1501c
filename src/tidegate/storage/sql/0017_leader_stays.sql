-- Whoever leads and lives goes on leading: a member that stalls past its lease now and then is not
-- to take the lead back each time, and have every loop forget what it has learned.

create function is_living(id int) returns boolean language sql as $$
    select exists (select from member where member_id = id and alive_until > clock_timestamp())
$$;

-- Whether a member may lead: it does already, or whoever did lives no more and of the others it has
-- the smallest id.
create function may_lead(candidate int, holder int) returns boolean language sql as $$
    select case
        when candidate = holder then is_living(candidate)
        when is_living(holder) then false
        else candidate = (select min(member_id) from member where alive_until > clock_timestamp())
    end
$$;

-- The epoch of a member that leads; null: another does, or is to.
create or replace function lead_cluster(candidate int) returns bigint language plpgsql as $$
declare
    held leader;
begin
    -- Nothing is changed as a rule, and nobody is to wait.
    select * into held from leader;
    if may_lead(candidate, held.member_id) is not true then
        return null;
    end if;
    if held.member_id = candidate then
        return held.epoch;
    end if;
    select * into held from leader for update;
    -- Whoever was before us leads, if it lives.
    if may_lead(candidate, held.member_id) is not true then
        return null;
    end if;
    if held.member_id is distinct from candidate then
        update leader set member_id = candidate, epoch = leader.epoch + 1
        returning leader.epoch into held.epoch;
    end if;
    return held.epoch;
end $$;
