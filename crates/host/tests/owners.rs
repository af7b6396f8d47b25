//! A volume passes from an owner that is gone to the next, over real connections.

mod support;

use cenote_fabric::{Error as FabricError, Status};
use cenote_pool::control::{Refusal, Reply, Request, Window};
use support::{Client, Fabric, Lab, noise};

const VOLUME: u128 = 9;

fn own(client: &mut Client, epoch: u64) -> Result<u32, Refusal> {
    let request = 1_000_000 + epoch;
    match client.ask(&Request::Own {
        request,
        volume: VOLUME,
        epoch,
    }) {
        Reply::Owned {
            request: answered,
            slabs,
        } if answered == request => Ok(slabs),
        Reply::Refused {
            request: answered,
            reason,
        } if answered == request => Err(reason),
        other => panic!("{other:?}"),
    }
}

fn retake(client: &mut Client, extent: u32, birth: u64) -> Result<Window, Refusal> {
    match client.ask(&Request::Retake {
        request: 7,
        volume: VOLUME,
        extent,
        member: 0,
        birth,
    }) {
        Reply::Mapped { window, .. } => Ok(window),
        Reply::Refused { reason, .. } => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// Owns the volume once the host has seen that the earlier owner is gone.
fn own_at_last(client: &mut Client, epoch: u64) -> u32 {
    for _ in 0..1_000_000 {
        match own(client, epoch) {
            Ok(slabs) => return slabs,
            Err(Refusal::Owned) => std::thread::yield_now(),
            Err(other) => panic!("{other:?}"),
        }
    }
    panic!("the host never saw the earlier owner go");
}

#[test]
fn the_next_owner_gets_the_bytes_and_the_former_none_of_them() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let host = lab.host("h", 4);
        let mut first = lab.client(&host, 1);
        assert_eq!(own(&mut first, 1), Ok(0));
        let (kept, left) = (first.map(VOLUME, 0), first.map(VOLUME, 1));
        let other = first.map(VOLUME + 1, 0);
        let window = first.attach(kept).unwrap();
        let bytes = noise(5, 50_000);
        assert_eq!(first.write(&window, 3000, &bytes), Status::Ok);

        let mut second = lab.client(&host, 2);
        assert_eq!(
            own(&mut second, 2),
            Err(Refusal::Owned),
            "the first is here"
        );
        drop(first);
        assert_eq!(own_at_last(&mut second, 2), 2);
        assert!(matches!(second.attach(kept), Err(FabricError::StaleWindow)));
        let again = retake(&mut second, 0, kept.generation).unwrap();
        assert_ne!(again.generation, kept.generation);
        let window = second.attach(again).unwrap();
        let mut back = vec![0; bytes.len()];
        assert_eq!(second.read(&window, 3000, &mut back), Status::Ok);
        assert_eq!(back, bytes);
        assert_eq!(second.write(&window, 0, &bytes), Status::Ok);

        second.send(&Request::Leave { volume: VOLUME });
        let status = second.status_when(|status| status.slabs.mapped == 2);
        assert_eq!(
            status.clients_total, 2,
            "the first still holds another volume"
        );
        assert_eq!(
            retake(&mut second, 1, left.generation),
            Err(Refusal::NotHeld)
        );

        // The first comes back: the volume is no longer its own, the other one is.
        let mut first = lab.client(&host, 1);
        assert_eq!(own(&mut first, 1), Err(Refusal::Superseded));
        assert_eq!(first.try_map(VOLUME, 3), Err(Refusal::Owned));
        assert!(matches!(first.attach(kept), Err(FabricError::StaleWindow)));
        first.unmap(again);
        assert!(first.attach(other).is_ok());
        assert_eq!(second.read(&window, 0, &mut back), Status::Ok);
        assert_eq!(back, bytes);
    }
}

#[test]
fn a_client_that_lost_its_connection_finds_its_slab_by_its_birth() {
    let lab = Lab::new(Fabric::Tcp);
    let host = lab.host("h", 2);
    let mut client = lab.client(&host, 1);
    let window = client.map(VOLUME, 0);
    let remote = client.attach(window).unwrap();
    assert_eq!(client.write(&remote, 0, b"still here"), Status::Ok);
    drop(client);
    let mut client = lab.client(&host, 1);
    assert_eq!(
        retake(&mut client, 0, window.generation ^ 1),
        Err(Refusal::NotHeld)
    );
    let again = retake(&mut client, 0, window.generation).unwrap();
    assert_eq!(again.id, window.id);
    // What was under way on the connection that was lost takes no effect any more.
    assert_ne!(again.generation, window.generation);
    assert!(matches!(
        client.attach(window),
        Err(FabricError::StaleWindow)
    ));
    let remote = client.attach(again).unwrap();
    let mut back = [0; 10];
    assert_eq!(client.read(&remote, 0, &mut back), Status::Ok);
    assert_eq!(&back, b"still here");
}
