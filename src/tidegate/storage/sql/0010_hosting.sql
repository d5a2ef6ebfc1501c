-- HTTP applications: services, their instances, what doors say, admission, code, standings.

create table service (
    name          text primary key,
    version       int not null default 1,
    spec          jsonb not null,
    detail        text not null default '',
    -- Signs the cookies of its sessions.
    secret        text not null,
    -- Requests that all doors may have in hand; null: no bound.
    in_flight_max int
) with (fillfactor = 50);

-- The versions that are deployed or have instances still.
create table service_version (
    service text not null references service on delete cascade,
    version int not null,
    spec    jsonb not null,
    primary key (service, version)
) with (fillfactor = 50);

create table instance (
    instance_id       serial primary key,
    service           text not null references service on delete cascade,
    version           int not null,
    state             text not null default 'ordered',
    machine_id        int,
    address           text,
    weight            float8 not null,
    concurrency       int,
    free_memory_bytes float8,
    ordered_at        timestamptz not null default clock_timestamp(),
    ready_at          timestamptz,
    detail            text not null default '',
    -- The leader has said that it drains or has failed: its machine cannot say otherwise.
    settled           boolean not null default false
) with (fillfactor = 50);
create index instance_service on instance (service);

-- Every door writes its own each second, and the next one is as good: not worth a log.
create unlogged table door_sample (
    service     text not null,
    door        text not null,
    reported_at timestamptz not null,
    document    bytea not null,
    primary key (service, door)
) with (fillfactor = 50);

create table package (
    digest  text primary key,
    content bytea not null,
    put_at  timestamptz not null default clock_timestamp()
);
-- What is packed is packed already.
alter table package alter column content set storage external;

create table standing (
    agreement text primary key,
    document  bytea not null
) with (fillfactor = 50);

-- Services

create type service_row as (spec jsonb, version int, detail text, secret text);

create function services(of_name text) returns setof service_row language sql stable as $$
    select spec, version, detail, secret from service
    where of_name is null or name = of_name order by name
$$;

create function deploy_service(
    of_name text, new_spec jsonb, new_secret text, keys_of_version text[], kept_s float8
) returns setof service_row language plpgsql as $$
declare
    known service;
begin
    insert into service (name, spec, secret) values (of_name, new_spec, new_secret)
    on conflict do nothing;
    if not found then
        select * into known from service where name = of_name for update;
        update service set spec = new_spec, version = known.version + (
            case when exists (select from unnest(keys_of_version) k
                              where known.spec -> k is distinct from new_spec -> k)
            then 1 else 0 end)
        where name = of_name;
    end if;
    insert into service_version (service, version, spec)
    select name, version, new_spec from service where name = of_name
    on conflict (service, version) do update set spec = excluded.spec;
    delete from service_version v where v.service = of_name
        and v.version <> (select version from service where name = of_name)
        and not exists (select from instance i
                        where i.service = of_name and i.version = v.version);
    -- Code that nobody deploys; who has put some lately is about to.
    delete from package p where p.put_at < clock_timestamp() - make_interval(secs => kept_s)
        and not exists (select from service_version v where v.spec ->> 'package' = p.digest);
    return query select * from services(of_name);
end $$;

create function undeploy_service(of_name text) returns boolean language plpgsql as $$
begin
    perform 1 from service where name = of_name for update;
    perform 1 from instance where service = of_name order by instance_id for update;
    delete from door_sample where service = of_name;
    delete from service where name = of_name;
    return found;
end $$;

create function set_service_detail(of_name text, new_detail text, leader_epoch bigint)
returns void language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    update service set detail = new_detail where name = of_name and detail <> new_detail;
end $$;

-- Instances

create type instance_row as (
    instance_id int, service text, version int, state text, machine_id int, address text,
    weight float8, concurrency int, free_memory_bytes float8, ordered_at float8, ready_at float8,
    detail text
);

create function instances(of_service text, id int) returns setof instance_row
language sql stable as $$
    select i.instance_id, i.service, i.version, i.state, i.machine_id, i.address, i.weight,
           i.concurrency, i.free_memory_bytes, extract(epoch from i.ordered_at)::float8,
           extract(epoch from i.ready_at)::float8, i.detail
    from instance i
    where (of_service is null or i.service = of_service) and (id is null or i.instance_id = id)
    order by i.instance_id
$$;

-- Nothing: there is no such service.
create function add_instance(of_service text, with_weight float8, leader_epoch bigint)
returns setof instance_row language plpgsql as $$
declare
    made int;
begin
    perform fence_leader(leader_epoch);
    insert into instance (service, version, weight)
    select name, version, with_weight from service where name = of_service for share
    returning instance_id into made;
    if made is not null then
        return query select * from instances(null, made);
    end if;
end $$;

-- Another machine than before: it begins anew.
create function assign_instance(id int, to_machine int, leader_epoch bigint)
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
        free_memory_bytes = null, ready_at = null, detail = ''
    where instance_id = id and not settled;
    return found;
end $$;

create function set_instance(
    id int, leader_epoch bigint, new_state text, new_weight float8, new_concurrency int,
    new_detail text
) returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    if new_state = 'ordered' then
        update instance set machine_id = null, address = null, free_memory_bytes = null,
            ready_at = null
        where instance_id = id;
    end if;
    update instance set
        state = coalesce(new_state, state),
        settled = case when new_state is null then settled
                       else new_state in ('draining', 'failed') end,
        weight = coalesce(new_weight, weight),
        concurrency = coalesce(new_concurrency, concurrency),
        detail = coalesce(new_detail, detail)
    where instance_id = id;
    return found;
end $$;

create function remove_instance(id int, leader_epoch bigint) returns boolean language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    delete from instance where instance_id = id;
    return found;
end $$;

-- False: nobody wants it there.
create function report_instance(
    id int, on_machine int, new_state text, new_address text, new_free float8, new_detail text
) returns boolean language plpgsql as $$
declare
    known instance;
begin
    -- Asked once a second for each: nothing is written when nothing is new.
    select * into known from instance where instance_id = id and machine_id = on_machine;
    if not found then
        return false;
    end if;
    if (known.address, known.free_memory_bytes) is not distinct from (new_address, new_free)
       and (known.settled or (known.state, known.detail) = (new_state, new_detail)) then
        return true;
    end if;
    update instance set
        address = new_address, free_memory_bytes = new_free,
        state = case when settled then state else new_state end,
        detail = case when settled then detail else new_detail end,
        ready_at = case when settled then ready_at
                        when new_state <> 'ready' then null
                        else coalesce(ready_at, clock_timestamp()) end
    where instance_id = id and machine_id = on_machine;
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
        ready_at = null, state = case when settled then state else 'ordered' end
    where machine_id = id;
    delete from machine where machine_id = id;
    was_there := found;
    perform touch_topologies(touched);
    return was_there;
end $$;

-- Doors

create function report_door(of_service text, of_door text, new_document bytea, fresh_s float8)
returns void language plpgsql as $$
begin
    delete from door_sample where service = of_service and door <> of_door
        and reported_at < clock_timestamp() - make_interval(secs => fresh_s);
    insert into door_sample (service, door, reported_at, document)
    select name, of_door, clock_timestamp(), new_document from service where name = of_service
    on conflict (service, door)
    do update set reported_at = excluded.reported_at, document = excluded.document;
end $$;

create function door_samples(of_service text, fresh_s float8) returns setof bytea
language sql stable as $$
    select document from door_sample where service = of_service
        and reported_at >= clock_timestamp() - make_interval(secs => fresh_s)
    order by door
$$;

create function set_service_admission(of_service text, new_max int, leader_epoch bigint)
returns void language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    update service set in_flight_max = new_max
    where name = of_service and in_flight_max is distinct from new_max;
end $$;

-- Code and standings

create function put_package(of_digest text, new_content bytea) returns void language sql as $$
    insert into package (digest, content) values (of_digest, new_content)
    on conflict (digest) do update set put_at = clock_timestamp()
$$;

create function keep_standing(of_agreement text, new_document bytea, leader_epoch bigint)
returns void language plpgsql as $$
begin
    perform fence_leader(leader_epoch);
    insert into standing (agreement, document) values (of_agreement, new_document)
    on conflict (agreement) do update set document = excluded.document;
end $$;
