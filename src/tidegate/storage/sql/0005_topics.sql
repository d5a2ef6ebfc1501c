-- Topics, and which queues get what is published there.

create table topic (
    topic_id   serial primary key,
    topic_name varchar(255) not null unique,
    created_at timestamptz not null default now()
);

create table subscription (
    topic_id      int not null references topic on delete cascade,
    queue_id      int not null references queue on delete cascade,
    -- Header → value, or values of which any will do; null: everything matches.
    header_filter jsonb,
    -- Set: the queue goes with a connection to that member.
    lives_with    int,
    primary key (topic_id, queue_id)
);
create index subscription_queue on subscription (queue_id);

create type topic_row as (topic_id int, topic_name varchar, subscriptions jsonb);

-- Subscriptions as [[queue id, queue name, filter, durable], …].
create function topic_rows() returns setof topic_row language sql stable as $$
    select t.topic_id, t.topic_name, coalesce(
        (select jsonb_agg(jsonb_build_array(q.queue_id, q.queue_name, s.header_filter,
                                            s.lives_with is null) order by q.queue_id)
         from subscription s join queue q using (queue_id) where s.topic_id = t.topic_id), '[]')
    from topic t
$$;

-- No row: there is one of that name.
create function create_topic(name varchar) returns setof topic_row language plpgsql as $$
begin
    insert into topic (topic_name) values (name) on conflict do nothing;
    if found then
        return query select * from topic_rows() r where r.topic_name = name;
    end if;
end $$;

create function delete_topic(name varchar) returns boolean language plpgsql as $$
begin
    delete from topic where topic_name = name;
    return found;
end $$;

create function find_topic(name varchar) returns setof topic_row language sql stable as $$
    select * from topic_rows() where topic_name = name
$$;

create function list_topics() returns setof topic_row language sql stable as $$
    select * from topic_rows() order by topic_name
$$;

-- No row: the topic is gone, or a queue for the life of a connection cannot have that name.
create function add_subscription(topic varchar, name varchar, new_filter jsonb, member int)
returns setof queue_row language plpgsql as $$
declare
    found_topic int;
    found_queue int;
begin
    -- For share: the topic stays until the subscription is there.
    select t.topic_id into found_topic from topic t where t.topic_name = topic for share;
    if not found then
        return;
    end if;
    select c.queue_id into found_queue from create_queue(name, true, '{}') c;
    if found_queue is null then
        if member is not null then
            return;
        end if;
        select q.queue_id into found_queue from queue q where q.queue_name = name for share;
        if not found then
            return;
        end if;
    end if;
    insert into subscription (topic_id, queue_id, header_filter, lives_with)
    values (found_topic, found_queue, new_filter, member)
    on conflict (topic_id, queue_id) do update set header_filter = excluded.header_filter;
    return query select * from find_queue(found_queue, null);
end $$;

create function drop_subscription(topic varchar, queue int) returns boolean language plpgsql as $$
begin
    delete from subscription s using topic t
    where t.topic_id = s.topic_id and t.topic_name = topic and s.queue_id = queue;
    return found;
end $$;

-- Queues that went with a connection to a member that is gone. Half a minute: one that was only
-- paused may come back, and its connections with it.
create function lost_subscriptions() returns setof int language sql stable as $$
    select distinct s.queue_id from subscription s left join member m on m.member_id = s.lives_with
    where s.lives_with is not null
      and (m.member_id is null or m.alive_until < clock_timestamp() - interval '30 s')
$$;
