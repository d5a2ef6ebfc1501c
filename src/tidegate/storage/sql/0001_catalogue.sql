-- Clients, queues, members, and who owns which queue.

create table client (
    client_id   serial primary key,
    client_name varchar(255) not null unique,
    -- Null: the name is reserved by somebody who addressed it, and not registered yet.
    client_mode smallint,
    -- Whose client it is; null: made without a login.
    user_name   varchar(64)
);

create table queue (
    queue_id   serial primary key,
    queue_name varchar(255) not null unique,
    durable    boolean not null default true,
    -- What differs from the defaults, which only the node knows.
    policy     jsonb not null default '{}',
    created_at timestamptz not null default now()
);

create table member (
    member_id   serial primary key,
    member_name varchar(255) not null,
    address     text not null,
    started_at  timestamptz not null default now(),
    alive_until timestamptz not null
);

-- One row per queue replica. Writers lock it for share, a taker for update: a plain
-- read of the epoch would race a takeover.
create table replica (
    queue_id int primary key references queue on delete cascade,
    owner    int,
    epoch    bigint not null default 0,
    -- Ids below are given out; an owner reserves them in blocks.
    next_id  bigint not null default 1
) with (fillfactor = 50);

-- Clients

-- No row: somebody has that name.
create function register_client(name varchar, mode smallint, for_user varchar) returns table (
    client_id int, client_name varchar, client_mode smallint
) language plpgsql as $$
begin
    return query
        insert into client as c (client_name, client_mode, user_name)
        values (name, mode, for_user)
        on conflict on constraint client_client_name_key do update
            set client_mode = excluded.client_mode, user_name = excluded.user_name
            where c.client_mode is null
        returning c.client_id, c.client_name, c.client_mode;
end $$;

-- For a user, one of its own; for nobody in particular (null), any.
create function find_client(id int, name varchar, for_user varchar) returns table (
    client_id int, client_name varchar, client_mode smallint
) language sql stable as $$
    select c.client_id, c.client_name, c.client_mode from client c
    where c.client_mode is not null and (c.client_id = id or c.client_name = name)
      and (for_user is null or c.user_name = for_user)
$$;

-- The id under which a name is addressed, whether or not it is registered yet.
create function reserve_client(name varchar) returns int language plpgsql as $$
declare
    found_id int;
begin
    select client_id into found_id from client where client_name = name;
    if found_id is null then
        insert into client (client_name) values (name) on conflict do nothing
        returning client_id into found_id;
        if found_id is null then
            select client_id into found_id from client where client_name = name;
        end if;
    end if;
    return found_id;
end $$;

create function delete_client(id int) returns boolean language plpgsql as $$
begin
    delete from client where client_id = id and client_mode is not null;
    return found;
end $$;

-- Queues; what deletes them stands with the segments

create type queue_row as (queue_id int, queue_name varchar, durable boolean, policy jsonb);

-- No row: there is one of that name.
create function create_queue(name varchar, is_durable boolean, with_policy jsonb)
returns setof queue_row language plpgsql as $$
declare
    made queue;
begin
    insert into queue (queue_name, durable, policy) values (name, is_durable, with_policy)
    on conflict do nothing returning * into made;
    if made.queue_id is null then
        return;
    end if;
    insert into replica (queue_id) values (made.queue_id);
    return query select made.queue_id, made.queue_name, made.durable, made.policy;
end $$;

create function set_policy(id int, new_policy jsonb) returns boolean language plpgsql as $$
begin
    update queue set policy = new_policy where queue_id = id;
    return found;
end $$;

create function find_queue(id int, name varchar) returns setof queue_row
language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy from queue q
    where q.queue_id = id or q.queue_name = name
$$;

create function list_queues() returns setof queue_row language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy from queue q order by q.queue_name
$$;

-- Members

-- Who listens at an address is alone there: a member that was there before is dead, and what it
-- owned can be claimed at once instead of when its lease runs out.
create function join_cluster(name varchar, at_address text, lease_s float8) returns int
language sql as $$
    delete from member where address = at_address;
    insert into member (member_name, address, alive_until)
    values (name, at_address, clock_timestamp() + make_interval(secs => lease_s))
    returning member_id
$$;

create function leave_cluster(id int) returns void language plpgsql as $$
begin
    update replica set owner = null where owner = id;
    delete from member where member_id = id;
end $$;

-- Renew a member's life. False: it was declared dead and has lost everything.
create function renew_member(id int, lease_s float8) returns boolean language plpgsql as $$
begin
    update member set alive_until = clock_timestamp() + make_interval(secs => lease_s)
    where member_id = id;
    return found;
end $$;

create function list_members() returns table (
    member_id int, member_name varchar, address text, alive boolean, queues bigint
) language sql stable as $$
    select m.member_id, m.member_name, m.address, m.alive_until > clock_timestamp(),
           (select count(*) from replica r where r.owner = m.member_id)
    from member m order by m.member_id
$$;

-- Ownership

create function locate_queue(id int) returns table (
    queue_id int, queue_name varchar, durable boolean, policy jsonb,
    owner int, address text, alive boolean
) language sql stable as $$
    select q.queue_id, q.queue_name, q.durable, q.policy, r.owner, m.address,
           coalesce(m.alive_until > clock_timestamp(), false)
    from queue q join replica r using (queue_id) left join member m on m.member_id = r.owner
    where q.queue_id = id
$$;

-- Who serves these queues; no row: nobody living.
create function owners(queues int[]) returns table (queue_id int, address text)
language sql stable as $$
    select r.queue_id, m.address from replica r join member m on m.member_id = r.owner
    where r.queue_id = any (queues) and m.alive_until > clock_timestamp()
$$;

-- Queues that no living member owns.
create function orphans() returns setof int language sql stable as $$
    select r.queue_id from replica r left join member m on m.member_id = r.owner
    where m.member_id is null or m.alive_until <= clock_timestamp()
    order by r.queue_id
$$;

-- Take a queue whose owner is dead or absent, or which is mine. Raises the epoch, so that
-- whatever the former owner still writes is refused. No row: somebody alive owns it.
create function claim_queue(id int, taker int) returns table (epoch bigint, next_id bigint)
language plpgsql as $$
declare
    held replica;
    owner_alive boolean;
begin
    select * into held from replica r where r.queue_id = id for update;
    if not found then
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
    delete from member m where m.member_id = held.owner and held.owner <> taker;
    return query
        update replica r set owner = taker, epoch = r.epoch + 1 where r.queue_id = id
        returning r.epoch, r.next_id;
end $$;

-- Hand a queue over, or let it go (heir null). False: it was not mine in that epoch.
create function release_queue(id int, in_epoch bigint, heir int) returns boolean
language plpgsql as $$
begin
    update replica set owner = heir, epoch = epoch + 1 where queue_id = id and epoch = in_epoch;
    return found;
end $$;

-- The next block of message ids; null when the epoch is no longer the owner's.
create function reserve_ids(id int, in_epoch bigint, count bigint) returns bigint
language sql as $$
    update replica set next_id = next_id + count where queue_id = id and epoch = in_epoch
    returning next_id
$$;

-- For a change of several queues: all of these epochs are their owners', until this transaction
-- ends; else it ends here.
create function fence(queues int[], epochs bigint[]) returns int language plpgsql as $$
begin
    perform 1 from replica r where r.queue_id = any (queues) order by r.queue_id for share;
    if exists (select from unnest(queues, epochs) as u (q, e)
               where not exists (select from replica r where r.queue_id = u.q and r.epoch = u.e))
    then
        raise exception 'a queue has a new owner' using errcode = 'TG001';
    end if;
    return 0;
end $$;
