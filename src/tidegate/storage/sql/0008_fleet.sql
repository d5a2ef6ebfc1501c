-- Machines, who leads them, what the leader decided; and who may claim what a machine is to serve.

create table leader (
    only_one  bool primary key default true check (only_one),
    member_id int,
    epoch     bigint not null default 0
);
insert into leader default values;

create table machine (
    machine_id serial primary key,
    provider   text not null,
    slots      int not null,
    state      text not null default 'booting',
    host       text,
    -- The member that its node is; null: it has not joined yet.
    member_id  int,
    ordered_at timestamptz not null default now(),
    joined_at  timestamptz,
    detail     text not null default ''
) with (fillfactor = 50);

create table decision (
    decision_id bigserial primary key,
    service     text not null,
    document    bytea not null
);
create index decision_service on decision (service, decision_id);

-- The leader

-- The epoch of a member that leads, the living one with the smallest id; null: another leads.
create function lead_cluster(candidate int) returns bigint language plpgsql as $$
declare
    held leader;
begin
    if candidate is distinct from
       (select min(member_id) from member where alive_until > clock_timestamp()) then
        return null;
    end if;
    -- Nothing is changed as a rule, and nobody is to wait.
    select * into held from leader;
    if held.member_id = candidate then
        return held.epoch;
    end if;
    select * into held from leader for update;
    -- Whoever was before us may have been an older one.
    if candidate is distinct from
       (select min(member_id) from member where alive_until > clock_timestamp()) then
        return null;
    end if;
    if held.member_id is distinct from candidate then
        update leader set member_id = candidate, epoch = leader.epoch + 1
        returning leader.epoch into held.epoch;
    end if;
    return held.epoch;
end $$;

-- For share: who would lead instead waits until what was ordered is done.
create function fence_leader(leader_epoch bigint) returns void language plpgsql as $$
begin
    perform 1 from leader where epoch = leader_epoch for share;
    if not found then
        raise exception 'somebody else leads' using errcode = 'TG001';
    end if;
end $$;

-- Machines

create type machine_row as (
    machine_id int, provider text, slots int, state text, host text, member_id int, alive boolean,
    address text, ordered_at float8, joined_at float8, detail text
);

create function machines(id int) returns setof machine_row language sql stable as $$
    select c.machine_id, c.provider, c.slots, c.state, c.host, c.member_id,
           coalesce(m.alive_until > clock_timestamp(), false), m.address,
           extract(epoch from c.ordered_at)::float8, extract(epoch from c.joined_at)::float8,
           c.detail
    from machine c left join member m using (member_id)
    where id is null or c.machine_id = id order by c.machine_id
$$;

create function add_machine(of_provider text, with_slots int, on_host text, leader_epoch bigint)
returns setof machine_row language plpgsql as $$
declare
    made int;
begin
    perform fence_leader(leader_epoch);
    insert into machine (provider, slots, host) values (of_provider, with_slots, on_host)
    returning machine_id into made;
    return query select * from machines(made);
end $$;

create function set_machine_state(id int, new_state text, leader_epoch bigint, new_detail text)
returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    update machine set state = new_state, detail = new_detail where machine_id = id;
    return found;
end $$;

-- False: nobody wants it any more.
create function machine_joined(id int, member int) returns boolean language sql as $$
    with joined as (
        update machine set member_id = member, joined_at = clock_timestamp(),
            state = case when state = 'booting' then 'up' else state end
        where machine_id = id and state not in ('halting', 'failed') returning 1
    ) select exists (select from joined)
$$;

-- What the machine says is wrong with it; false: nobody wants it any more.
create function report_machine(id int, new_detail text) returns boolean language plpgsql as $$
declare
    known machine;
begin
    -- Asked once a second by each: nothing is written when nothing is new.
    select * into known from machine where machine_id = id;
    if known.machine_id is null or known.state in ('halting', 'failed') then
        return false;
    end if;
    if known.detail <> new_detail then
        update machine set detail = new_detail
        where machine_id = id and state not in ('halting', 'failed');
        return found;
    end if;
    return true;
end $$;

-- What it was to serve, anybody may.
create function remove_machine(id int, leader_epoch bigint) returns boolean language plpgsql as $$
declare
    touched int[];
    was_there boolean;
begin
    perform fence_leader(leader_epoch);
    perform 1 from place where machine_id = id order by alias_id, number for update;
    touched := array(select alias_id from place where machine_id = id);
    update place set machine_id = null where machine_id = id;
    delete from machine where machine_id = id;
    was_there := found;
    perform touch_topologies(touched);
    return was_there;
end $$;

-- Decisions

create function note_decision(of_service text, new_document bytea, leader_epoch bigint, kept int)
returns void language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    insert into decision (service, document) values (of_service, new_document);
    delete from decision d where d.service = of_service and d.decision_id <= (
        select e.decision_id from decision e where e.service = of_service
        order by e.decision_id desc offset kept limit 1);
end $$;

create function decisions(of_service text, count int) returns setof bytea language sql stable as $$
    select document from decision where service = of_service order by decision_id desc limit count
$$;

-- Who may claim what

-- Replicas that the living machine of another member is to serve.
create function reserved(for_member int) returns setof int language sql stable as $$
    select p.queue_id from place p join machine c using (machine_id)
    join member m on m.member_id = c.member_id
    where m.alive_until > clock_timestamp() and m.member_id is distinct from for_member
$$;

drop function orphans();
-- Queues that no living member owns, and that this one may claim.
create function orphans(for_member int) returns setof int language sql stable as $$
    select r.queue_id from replica r left join member m on m.member_id = r.owner
    where (m.member_id is null or m.alive_until <= clock_timestamp())
      and r.queue_id not in (select reserved(for_member))
    order by r.queue_id
$$;

create or replace function claim_queue(id int, taker int) returns table (
    epoch bigint, next_id bigint
) language plpgsql as $$
declare
    held replica;
    owner_alive boolean;
begin
    select * into held from replica r where r.queue_id = id for update;
    if not found or id in (select reserved(taker)) then
        return;
    end if;
    -- For update: a renewal comes before us and keeps the queue, or after us and finds nothing.
    select m.alive_until > clock_timestamp() into owner_alive from member m
    where m.member_id = held.owner for update;
    if coalesce(owner_alive, false) and held.owner <> taker then
        return;
    end if;
    if not exists (select from member m where m.member_id = taker
                   and m.alive_until > clock_timestamp()) then
        return;
    end if;
    -- Declared dead. It may only be paused, with messages in memory that now are ours: its next
    -- renewal must tell it to forget them.
    if held.owner <> taker and owner_alive is not null then
        perform touch_topologies_of(array[held.owner]);
        delete from member m where m.member_id = held.owner;
    end if;
    perform touch_topologies(array(select alias_of(q) from queue q where q.queue_id = id));
    return query
        update replica r set owner = taker, epoch = r.epoch + 1 where r.queue_id = id
        returning r.epoch, r.next_id;
end $$;
