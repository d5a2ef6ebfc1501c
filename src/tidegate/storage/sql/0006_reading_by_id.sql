-- Segments that hold ids from `from_id` to `to_id`, of whatever lane, in order, until their payloads
-- reach `bytes_max`. The first may begin before: segments do not overlap, so it is the last that
-- begins there.
create function read_between(
    in_queue int, from_id bigint, to_id bigint, count_max int, bytes_max bigint
) returns setof segment_row language sql stable as $$
    select first_id, priority, extract(epoch from arrived_at)::float8, lengths, senders, receivers,
           contexts, attributes, payload, done, null::float8, attempts_of(in_queue, first_id)
    from (
        select next.*, a.done,
               sum(octet_length(payload)) over (order by first_id) - octet_length(payload)
                   as bytes_before
        from (
            select * from stored_segment
            where queue_id = in_queue and due_at is null
              and first_id between coalesce((
                  select max(s.first_id) from segment s
                  where s.queue_id = in_queue and s.first_id <= from_id
              ), from_id) and to_id
              and first_id + count > from_id
            order by first_id limit count_max
        ) next left join ack a using (queue_id, first_id)
    ) summed
    where bytes_before < bytes_max
    order by first_id
$$;
