//! Simulated [`MachineActions`], which records the stages.

use super::*;
use model::device_name::DevicePath;
use model::install_report::ErasedDisk;
use model::inventory::{DiskTable, EraseMethod};
use operations::{DeviceOp, Operation, SessionOp};

/// Simulated machine: an inventory, and the names of the stages that were started. It cannot open devices.
pub struct SimulatedMachine {
    pub inventory: Inventory,
    pub ran: Mutex<Vec<StageName>>,
    /// Stage that fails.
    pub fails_at: Mutex<Option<StageName>>,
    /// For each end of a session, whether the installation was complete.
    pub left: Mutex<Vec<bool>>,
    /// Paths of the wiped disks, in order.
    pub wiped: Mutex<Vec<String>>,
    pub pause: std::time::Duration,
    pub burned: Mutex<Vec<DevicePath>>,
    /// Partition table that a disk gets when an image is burned onto it.
    pub brings: Option<DiskTable>,
    /// Password hash with which logins were enabled.
    pub let_in: Mutex<Option<String>>,
    /// For each started layout, whether its preserved containers are unlocked.
    pub opens: Mutex<Vec<bool>>,
}

impl SimulatedMachine {
    pub(crate) fn new(inventory: Inventory) -> SimulatedMachine {
        SimulatedMachine {
            inventory,
            ran: Mutex::default(),
            fails_at: Mutex::default(),
            left: Mutex::default(),
            wiped: Mutex::default(),
            pause: std::time::Duration::ZERO,
            burned: Mutex::default(),
            brings: None,
            let_in: Mutex::default(),
            opens: Mutex::default(),
        }
    }
}

impl MachineActions for SimulatedMachine {
    fn begin_step(&self, wanted: Option<(&Layout, &mut Allocation)>) -> Result<Inventory> {
        self.opens.lock().unwrap().extend(wanted.map(|(_, allocation)| allocation.reinstall));
        let mut inventory = self.inventory.clone();
        let burned = self.burned.lock().unwrap();
        for disk in inventory.disks.iter_mut().filter(|disk| burned.contains(&disk.device)) {
            disk.table.clone_from(&self.brings);
        }
        Ok(inventory)
    }

    fn run_part(&self, part: &Plan) -> Result<DiskChanges> {
        std::thread::sleep(self.pause);
        let mut done = DiskChanges::default();
        for stage in &part.stages {
            if *self.fails_at.lock().unwrap() == Some(stage.name) {
                return Err(Error::new(Phase::Storage, format!("{} fails on a simulated machine", stage.name)));
            }
            self.ran.lock().unwrap().push(stage.name);
            for operation in &stage.operations {
                if let Operation::Run(SessionOp::BurnDisk(burn)) = operation {
                    self.burned.lock().unwrap().push(burn.device.clone());
                }
                if let Operation::Device(DeviceOp::WipeDisk(wipe)) = operation {
                    let (device, serial) = (wipe.device.to_string(), String::new());
                    self.wiped.lock().unwrap().push(device.clone());
                    let (method, proof) = (EraseMethod::WriteZeroes, "on a simulated machine".to_owned());
                    done.erased.push(ErasedDisk { device, serial, method, proof, seconds: 0.0 });
                }
            }
        }
        Ok(done)
    }

    fn release_all(&self, whole: bool) {
        self.left.lock().unwrap().push(whole);
    }

    fn sync_filesystems(&self) {}

    fn enable_rescue(&self, hash: &str) -> Result<()> {
        *self.let_in.lock().unwrap() = Some(hash.to_owned());
        Ok(())
    }

    fn fetch_file(&self, url: &str) -> Result<Vec<u8>> {
        Ok(url.as_bytes().to_vec())
    }

    fn collect_logs(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![("kernel.log", b"on a simulated machine".to_vec())]
    }
}
