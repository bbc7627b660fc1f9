//! Takes down what holds a disk, and proves that nothing holds it any more.

use crate::error::Result;
use crate::plan::Holder;

pub fn release(_holder: &Holder) -> Result<()> {
    todo!()
}

pub fn assert_free(_disks: &[String]) -> Result<()> {
    todo!()
}
