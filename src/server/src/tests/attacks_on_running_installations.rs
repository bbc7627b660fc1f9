//! Attacks on a running installation with boot requests.

use super::boot_network_attackers::{ATTACKER, MACHINE_ADDRESS, in_earnest};
use super::reinstall::with_images;
use super::*;

/// Former address of the machine's iPXE, which another host has now.
const FIRMWARE: &str = "127.0.0.3";

async fn fetch_machine(server: &Running, token: &str) -> u16 {
    server.from(MACHINE_ADDRESS, "GET", &format!("/v1/machine/{ONE}"), token, "").await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_boots_do_not_end_a_running_installation() {
    let server = in_earnest(with_images()).await;
    let token = token_of(&server.boot_from(FIRMWARE, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    for address in [ATTACKER, FIRMWARE, MACHINE_ADDRESS] {
        assert_eq!(server.boot_from(address, ONE).await.status, 200);
        assert_eq!(fetch_machine(&server, &token).await, 200, "after a request for a boot from {address}");
    }
    for number in 0..300 {
        server.boot_from(&format!("127.0.{}.{}", 1 + number / 200, 1 + number % 200), ONE).await;
    }
    assert_eq!(fetch_machine(&server, &token).await, 200, "after 300 requests for boots");
}

/// A machine that sends no requests may still be installing, for example while a switch is restarting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_boots_do_not_end_a_silent_installation() {
    let server = Running::start_in(with_images()).await;
    let token = token_of(&server.boot_from(FIRMWARE, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    for address in [ATTACKER, FIRMWARE, MACHINE_ADDRESS] {
        assert_eq!(server.boot_from(address, ONE).await.status, 200);
        assert_eq!(fetch_machine(&server, &token).await, 200, "after a request for a boot from {address}");
    }
}

/// Between the request of iPXE and the registration, only the token identifies the machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_requests_of_many_addresses_preserve_the_token() {
    let server = in_earnest(with_images()).await;
    let token = token_of(&server.boot_from(FIRMWARE, ONE).await.text());
    for number in 0..300 {
        server.boot_from(&format!("127.0.{}.{}", 1 + number / 200, 1 + number % 200), ONE).await;
    }
    server.boot_from(FIRMWARE, ONE).await;
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
}
