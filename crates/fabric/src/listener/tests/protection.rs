//! How page traffic is protected is said by the client, demanded by the host, and never less than both want.

use super::*;
use crate::{WireProtection, connector_with};

fn session(address: &Address, wanted: WireProtection) -> Box<dyn Session> {
    connector_with(key(), wanted)
        .connect(address, &hello(1), PATIENCE)
        .unwrap()
}

#[test]
fn a_host_takes_what_it_demands_and_what_is_stronger() {
    for demanded in WireProtection::ALL {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::demanding(&both(&dir), demanded);
        let descriptor = host.window(4096, Rights::ALL);
        for wanted in WireProtection::ALL {
            let mut session = session(&host.addresses[1], wanted);
            let window = attach(&mut *session, descriptor).unwrap();
            match session.endpoint(PATIENCE) {
                Ok(mut endpoint) => {
                    assert!(wanted >= demanded, "{wanted} where {demanded} is demanded");
                    let mut queue = CompletionQueue::default();
                    endpoint
                        .post_fetch_add(&window, 0, 1, 7, &mut queue)
                        .unwrap();
                    let ended = completion(&mut *endpoint, &mut queue);
                    assert_eq!((ended.token, ended.status), (7, crate::Status::Ok));
                }
                Err(refused) => {
                    assert!(wanted < demanded, "{wanted} where {demanded} is demanded");
                    let said = refused.to_string();
                    assert!(said.contains("protected so little"), "{said}");
                    assert!(!refused.is_retryable());
                }
            }
        }
    }
}

#[test]
fn memory_that_is_mapped_has_no_wire_to_protect() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::demanding(&both(&dir), WireProtection::Encrypted);
    let session = session(&host.addresses[0], WireProtection::Plain);
    session.endpoint(PATIENCE).unwrap();
}
