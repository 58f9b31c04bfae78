//! Connects the driver of a kit with a serial device.

use std::{
    cell::RefCell,
    convert::Infallible,
    path::Path,
    time::{Duration, Instant},
};

use millrace_earl::Driver;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    channels::Reports,
    device::{Device, DeviceError},
};

/// Pause before the next attempt to open the device.
const OPEN_EVERY: Duration = Duration::from_secs(1);
/// Time after which a device that accepts no bytes counts as disconnected. At 9600 baud, the longest request takes
/// 50 ms.
const WRITE_MAX: Duration = Duration::from_secs(2);
/// Least pause between two looks at the clock.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// Drives the module on a serial device, and opens the device again after each failure. Never returns.
///
/// `wake` must be notified after each command to `driver`. `note` is called with each change of the connection.
pub async fn operate(
    driver: &RefCell<Driver>,
    wake: &Notify,
    path: &Path,
    reports: &Reports,
    note: fn(&dyn std::fmt::Display),
) -> Infallible {
    let started = Instant::now();
    let mut noted = String::new();
    loop {
        let why = match Device::open(path) {
            Ok(device) => {
                noted.clear();
                note(&format_args!("{}: connected", path.display()));
                driver.borrow_mut().connect(started.elapsed());
                match exchange(driver, wake, &device, reports, started).await {
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        driver.borrow_mut().disconnect(started.elapsed(), &why.to_string());
        let why = format!("{}: {why}", path.display());
        if why != noted {
            note(&why);
            noted = why;
        }
        let again = sleep(OPEN_EVERY);
        tokio::pin!(again);
        loop {
            // Without a device, commands are answered, too.
            report(driver, reports);
            tokio::select! {
                () = &mut again => break,
                () = wake.notified() => {}
            }
        }
    }
}

/// Moves bytes between driver and device until the device is disconnected.
async fn exchange(
    driver: &RefCell<Driver>,
    wake: &Notify,
    device: &Device,
    reports: &Reports,
    started: Instant,
) -> Result<Infallible, DeviceError> {
    loop {
        driver.borrow_mut().handle_timeout(started.elapsed());
        let output = driver.borrow_mut().poll_output();
        timeout(WRITE_MAX, device.write(&output)).await.unwrap_or(Err(DeviceError::Disconnected))?;
        report(driver, reports);
        let pause = driver.borrow().poll_timeout().saturating_sub(started.elapsed()).max(PAUSE_MIN);
        tokio::select! {
            bytes = device.read() => driver.borrow_mut().handle_input(started.elapsed(), &bytes?),
            () = wake.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

fn report(driver: &RefCell<Driver>, reports: &Reports) {
    let next = || driver.borrow_mut().poll_report();
    std::iter::from_fn(next).for_each(|report| reports.send(report));
}
