//! Who asks for no reply gets none, whatever becomes of the request.

use super::*;

const REQUESTS: [&str; 4] = [
    "set a 0 0 1 noreply\r\n1\r\n",
    "delete a noreply\r\n",
    "incr a 1 noreply\r\n",
    "touch a 10 noreply\r\n",
];

#[test]
fn a_silent_request_whose_partition_changes_hands_is_not_answered() {
    for request in REQUESTS {
        for is_closed in [false, true] {
            let mut bench = Bench::new();
            // An item under way: what finds it waits for it, whether it changes it or not.
            bench.say("set a 0 0 1\r\n1\r\n");
            bench.core.backend.partition.is_closed = is_closed;
            bench.say(request);
            bench.core.backend.partition.is_closed = false;
            assert_eq!(bench.read(), "");
            bench.core.backend.partition.term = 7;
            assert_eq!(bench.read().as_bytes(), UNKNOWN, "{request}");
            assert!(bench.session.is_done());
        }
    }
}

#[test]
fn an_error_of_another_node_is_no_answer_to_a_silent_request() {
    for request in REQUESTS {
        let mut bench = Bench::of(shared(1), vec![3]);
        bench.core.backend.route = Route::Node(3);
        bench.say(&format!("{request}mn\r\n"));
        let (_, ticket, _) = bench.core.backend.asked.remove(0);
        bench.core.backend.answers.push(ticket, UNKNOWN);
        assert_eq!(bench.read(), "MN\r\n", "{request}");
        assert!(bench.session.is_done());
    }
}

#[test]
fn a_flush_that_is_refused_is_answered_unless_it_is_silent() {
    let mut shared = shared(1);
    let settings = &mut Arc::get_mut(&mut shared).unwrap().settings;
    settings.may_flush = false;
    let mut bench = Bench::of(shared, Vec::new());
    bench.say("flush_all noreply\r\nflush_all 0 noreply\r\nmn\r\nflush_all\r\n");
    let refused = "CLIENT_ERROR flush_all not allowed\r\n";
    assert_eq!(bench.read(), format!("MN\r\n{refused}"));
}
