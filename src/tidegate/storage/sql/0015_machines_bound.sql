-- How many machines there may be, as whoever leads has said: who deploys from elsewhere does not
-- know the settings of those who boot them. 0: nobody boots any; null: nobody has said it yet.
alter table leader add column machines_max int;

create function bound_machines(most int, leader_epoch bigint) returns void language plpgsql as $$
begin
    -- For update at once: from a share of the row two could wait for each other.
    perform 1 from leader for update;
    perform fence_leader(leader_epoch);
    update leader set machines_max = most where machines_max is distinct from most;
end $$;
