-- Who may log in and do what: users with salted keys, and what nodes know each other by.

create table access_user (
    user_name  varchar(64) primary key,
    -- SCRAM-SHA-256 (RFC 5802): nothing here lets anyone log in.
    salt       bytea not null,
    stored_key bytea not null,
    server_key bytea not null,
    iterations int not null check (iterations >= 4096),
    -- [[role, pattern], …]
    grants     jsonb not null
);

-- One row: nodes look at the version each second, and at the users when it has changed.
create table access_state (
    only_one bool primary key default true check (only_one),
    version  bigint not null default 0,
    secret   bytea
);
insert into access_state default values;

create function users_changed() returns void language sql as $$
    update access_state set version = version + 1
$$;

create function users_version() returns bigint language sql stable as $$
    select version from access_state
$$;

create function add_user(
    name varchar, with_salt bytea, with_stored_key bytea, with_server_key bytea,
    with_iterations int, with_grants jsonb
) returns boolean language plpgsql as $$
begin
    insert into access_user
    values (name, with_salt, with_stored_key, with_server_key, with_iterations, with_grants)
    on conflict do nothing;
    if found then
        perform users_changed();
        return true;
    end if;
    return false;
end $$;

create function set_user_keys(
    name varchar, new_salt bytea, new_stored_key bytea, new_server_key bytea, new_iterations int
) returns boolean language plpgsql as $$
begin
    update access_user
    set salt = new_salt, stored_key = new_stored_key, server_key = new_server_key,
        iterations = new_iterations
    where user_name = name;
    if found then
        perform users_changed();
        return true;
    end if;
    return false;
end $$;

create function set_user_grants(name varchar, new_grants jsonb) returns boolean
language plpgsql as $$
begin
    update access_user set grants = new_grants where user_name = name;
    if found then
        perform users_changed();
        return true;
    end if;
    return false;
end $$;

-- What belonged to it goes too: another user of that name must not inherit it.
create function remove_user(name varchar) returns boolean language plpgsql as $$
begin
    delete from client where user_name = name;
    delete from access_user where user_name = name;
    if found then
        perform users_changed();
        return true;
    end if;
    return false;
end $$;

create function list_users() returns setof access_user language sql stable as $$
    select * from access_user order by user_name
$$;

-- The first candidate ever handed in.
create function cluster_secret(candidate bytea) returns bytea language plpgsql as $$
begin
    update access_state set secret = candidate where secret is null;
    return (select secret from access_state);
end $$;
