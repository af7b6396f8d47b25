//! More clients than a host has places for.

use super::*;

/// Serves until `stop`, with so few places that a test fills them.
fn serve(mut listener: Listener, stop: &AtomicBool) -> Vec<Event> {
    listener.places = 4;
    let mut events = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        listener
            .poll(Some(Duration::from_millis(5)), &mut events)
            .unwrap();
    }
    events
}

#[test]
fn an_operator_gets_in_where_silent_clients_have_all_places_and_none_that_speaks_goes() {
    let dir = tempfile::tempdir().unwrap();
    for address in both(&dir) {
        let listener = Listener::bind(&[address], &key()).unwrap();
        let address = listener.addresses().remove(0);
        let waker = listener.waker();
        let stop = Arc::new(AtomicBool::new(false));
        let at_stop = Arc::clone(&stop);
        let host = thread::spawn(move || serve(listener, &at_stop));
        let connect = |client| connector(key()).connect(&address, &hello(client), PATIENCE);
        let mut speaking = connect(1).unwrap();
        let mut with_data = connect(2).unwrap();
        let opener = with_data.opener();
        let _data = opener(PATIENCE).unwrap();
        let silent: Vec<_> = (3..5).map(|client| connect(client).unwrap()).collect();
        assert!(connect(9).is_err(), "nobody has been silent for long");
        thread::sleep(FAILURE_TIMEOUT + Duration::from_millis(50));
        speaking.send(b"here").unwrap();
        // What was sent is taken before who comes after it.
        thread::sleep(Duration::from_millis(50));
        let operators: Vec<_> = (10..12).map(|client| connect(client).unwrap()).collect();
        assert!(
            connect(12).is_err(),
            "these are new, and the others speak or read"
        );
        stop.store(true, Ordering::Relaxed);
        waker.wake();
        let events = host.join().unwrap();
        let gone = |event: &&Event| matches!(event, Event::Disconnected { .. });
        assert_eq!(events.iter().filter(gone).count(), 2, "{events:?}");
        with_data.send(b"here too").unwrap_or(());
        drop((silent, operators));
    }
}
