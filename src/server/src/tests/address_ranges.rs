//! Ranges of addresses (`--range`) of servers that share a PostgreSQL database.

use super::*;
use crate::address_range_registration::RangeRegistration;
use std::sync::atomic::Ordering;
use store::address_ranges::RangeClaim;
use store::store_address::PostgresAddress;
use testing::postgres;

fn open_server(url: &str) -> (TempDir, ServerState) {
    let (dir, address) = (tempfile::tempdir().unwrap(), PostgresAddress::parse(url).unwrap());
    let path = dir.path().to_owned();
    let state = std::thread::spawn(move || ServerState::open_postgres(&address, &path, Duration::ZERO).unwrap());
    (dir, state.join().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlapping_range_is_refused_and_expired_one_disabled() {
    let Some(server) = postgres::shared() else { return };
    let url = server.create_database("address_ranges");
    let ((_one, one), (_two, two)) = (open_server(&url), open_server(&url));
    let heard = CapturedLog::default();
    let watch = ServerLog::json_into(heard.clone());
    let range = |text: &str| Some(text.parse().unwrap());
    assert!(!RangeRegistration::register_range(&one, None, &watch).await.unwrap().is_registered());
    let first = RangeRegistration::register_range(&one, range("10.0.0.100,10.0.0.199"), &watch).await.unwrap();
    let refused = RangeRegistration::register_range(&two, range("10.0.0.150,10.0.0.250"), &watch).await;
    let why = refused.err().unwrap().to_string();
    let server_name = format!("(process {})", std::process::id());
    assert!(why.contains("10.0.0.150-10.0.0.250") && why.contains("10.0.0.100-10.0.0.199"), "{why}");
    assert!(why.contains(&server_name), "{why}");

    // The first server cannot reach the database, so its registration expires.
    let (until, blocks) = std::sync::mpsc::channel();
    one.block_thread(blocks);
    while first.permission.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.run_sql("address_ranges", "UPDATE address_ranges SET expires = 1");
    let claim = two.register_address_range([10, 0, 0, 150].into(), [10, 0, 0, 250].into()).await.unwrap();
    assert!(matches!(claim, RangeClaim::Registered(_)));
    drop(until);
    while !heard.text().contains("dnsmasq is stopped") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!first.permission.load(Ordering::SeqCst));
    two.release_address_range().await.unwrap();
    while !first.permission.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_is_not_registered_with_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drophammer.sqlite");
    let state = std::thread::spawn(move || ServerState::open(&path, Duration::ZERO).unwrap()).join().unwrap();
    let watch = ServerLog::json_into(CapturedLog::default());
    let range = Some("10.0.0.100,10.0.0.199".parse().unwrap());
    let registration = RangeRegistration::register_range(&state, range, &watch).await.unwrap();
    assert!(!registration.is_registered() && registration.permission.load(Ordering::SeqCst));
}
