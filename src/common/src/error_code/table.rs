//! Table of all error codes. The first digit is the area: 1xx settings and commands, 2xx plan and layout, 3xx storage,
//! 4xx images, 5xx target and boot, 6xx control plane, 7xx server, 8xx migration. The titles are the headings of the
//! entries in the manual.

macro_rules! error_codes {
    ($($number:literal $code:ident $title:literal;)*) => {
        /// Stable code of a refusal or failure.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $($code = $number,)*
        }

        impl ErrorCode {
            /// All codes, in ascending order.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$code,)*];

            pub fn number(self) -> u16 {
                self as u16
            }

            /// Returns the symbolic name, such as `DiskMissing`.
            pub fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => stringify!($code),)*
                }
            }

            /// Returns the heading of the code's entry in the manual.
            pub fn title(self) -> &'static str {
                match self {
                    $(ErrorCode::$code => $title,)*
                }
            }
        }
    };
}

error_codes! {
    100 Settings "A setting, an option or a file is invalid";
    101 OperatorToken "The operator's token cannot be used";
    102 ServerUrl "The URL of the server cannot be used";
    103 RamdiskToolMissing "The ramdisk lacks a tool";
    104 ClientConfig "The configuration file of the commands is invalid";
    105 UnknownCode "The error code is unknown";

    200 Layout "An invalid layout";
    201 Plan "A refused plan";
    202 Inventory "An unusable inventory";
    210 DiskMissing "A disk of the layout does not exist";
    211 TooSmall "A disk or device is too small";
    212 InUse "A device is in use";
    213 InstallationUnconfirmed "Control plane and disks disagree about the installation";
    214 ForeignDisks "The disks belong to another machine";
    215 ObjectNotInspected "An object that cannot be inspected";
    216 PreservedMismatch "A preserved object differs from the layout";
    217 PreservedUnusable "A preserved object cannot be used";
    218 SpanningObject "An object spans disks that are wiped and disks that are not";
    219 IncompleteObject "An object is incomplete";
    220 BlankDevice "A preserved device is blank";
    221 DisksChanged "The disks have changed";
    222 DuplicateObject "A copy of a preserved object exists";
    223 WipePolicyChanged "The wipe policy of a disk has changed";
    224 DiskNotBlank "A disk is not blank";
    225 DiskUnusable "A disk cannot be used";
    226 DiskListedTwice "A disk is listed twice";
    227 NotReinstallable "The layout does not allow this reinstall";
    228 NameTaken "The name of an array or group is in use";
    229 ObjectNotCreatable "An array or group cannot be created";
    230 CompanionDevice "A filesystem depends on another device";
    231 EncryptionLocked "An encrypted object cannot be opened";
    232 KubernetesVolume "A Kubernetes volume cannot be prepared";
    233 ImageNotBootable "The image cannot be booted on this machine";
    234 OsDefinition "The OS definition contradicts the allocation or the layout";
    235 AllocationValue "A value of the allocation is invalid";
    236 StepDisabled "A required step is disabled";
    237 BootVariables "Boot variables cannot be removed";
    238 FirmwareVariable "A firmware variable cannot be read";
    239 PoolErasure "The disks of a pool machine are not erased";
    240 FileInjection "Files cannot be injected";
    241 TooManyObjects "Too many objects on the disks";
    242 InstalledSystem "The installed system cannot be booted";
    243 PreservedDataLoss "Disks that must be preserved would be wiped";
    244 DeployArguments "The arguments of a deploy step are invalid";
    245 ArchitectureMismatch "The image is for another architecture";

    300 Storage "A tool fails";
    301 DiskIdentity "A device name refers to a different disk than planned";
    302 DiskLock "A disk cannot be locked";
    303 HolderRelease "A device cannot be released";
    304 Rehearsal "The rehearsal fails";
    305 Wipe "A disk cannot be wiped";
    306 Partitioning "A disk cannot be partitioned";
    307 ArrayCreation "An array cannot be created";
    308 LvmCreation "A volume group or logical volume cannot be created";
    309 Encryption "A device cannot be encrypted";
    310 Mkfs "A filesystem cannot be created";
    311 Mount "A filesystem cannot be mounted";
    312 PreservedMount "A preserved filesystem cannot be mounted";
    313 VolumePreparation "A Kubernetes volume cannot be created";
    314 PreservationProof "A preserved object has changed";
    315 Unmount "A filesystem cannot be unmounted";
    316 OptionRejected "A tool rejects an option of the layout";
    317 BlankDeviceHasData "A device that was considered blank contains data";
    318 Passphrase "No valid passphrase was typed";
    319 EncryptionRequirements "Encryption is not possible";
    320 Deactivation "The new system is complete, but an array or volume group cannot be stopped";

    400 Image "An image cannot be processed";
    401 ImageUnavailable "The image is not available";
    402 DigestMismatch "The digest of the image does not match";
    403 SignatureRejected "The image is unsigned, or signed for another id";
    404 ImageWrite "The image cannot be written";
    405 VerifyProgram "The verify program rejects the parameters";
    406 CreateProgram "The create program cannot be run";
    407 ImageUrl "The URL of the image is invalid";

    500 Target "The new system cannot be completed";
    501 MachineFiles "The files of the machine cannot be written";
    502 ImageInstaller "The image's installer fails";
    503 Fstab "The filesystem table cannot be written";
    504 InstallMarker "The install marker cannot be written";
    510 Boot "The new system cannot be booted";
    511 BootCleanup "Boot entries cannot be removed";
    512 BootEntries "Boot entries cannot be created";
    513 KexecLoad "kexec is not permitted";
    514 KexecBoot "The new system is complete, but kexec fails";
    515 BootDigest "Kernel and ramdisk are not trusted";

    600 ControlPlane "The control plane refuses a request";
    601 NoAnswer "The server does not answer";
    602 BootToken "The token of the boot is rejected";
    603 AttemptNotStarted "The start of the installation is not recorded";
    604 SuccessNotRecorded "The report of success is not recorded";
    605 AllocationUntrusted "The allocation is not trusted";
    606 OtherMachine "The allocation is for another machine";
    607 NoNetwork "The ramdisk has no network";
    608 RescueSystem "The machine has booted a rescue system";
    609 ObjectMissing "The requested object does not exist";
    610 RequestTooLarge "The request is too large";
    611 RequestDeferred "The request cannot be processed now";
    612 ManagementController "The management controller cannot be used";
    640 OrderOutdated "An outdated order";
    641 ReinstallRefused "The reinstall is refused";
    642 OrderTooLate "The order can no longer be changed";
    643 ApprovalMismatch "The plan differs from the approved plan";
    644 AttemptsExhausted "No attempts are left";
    645 MachineLocked "The machine is locked";
    646 RolloutRefused "The rollout is refused";

    700 Server "The server cannot continue";
    701 BootFilesMissing "The kernel or the ramdisk is missing";
    702 UnknownMachine "An unknown machine";
    703 NoUuid "The machine has no usable UUID";
    704 DuplicateUuid "Another machine has the same UUID";
    705 SiteFile "A misspelled field";
    706 UnknownReference "An image or layout does not exist";
    707 NoMatchingLayout "No matching layout";
    708 AmbiguousLayout "Two layouts match the same size and image";
    709 ReinstallInFile "A machine file contains `reinstall:`";
    710 DatabaseMissing "The database is missing";
    711 AddressInUse "The address is in use";
    712 UnknownServerName "A request contains a host name that is not the server's";
    713 Tls "A TLS connection fails";
    714 ServerProblem "The server cannot complete its work";
    715 Backup "A backup cannot be written or restored";
    716 AccessDenied "The user lacks a permission";
    718 UndoneChange "Applying the documents would undo a change";
    720 DatabaseUnavailable "The database is unavailable";
    721 DatabaseMoved "The database was moved";
    722 DatabaseAddress "The PostgreSQL database cannot be used";
    730 OidcSettings "The OpenID Connect settings are invalid";
    731 OidcLogin "A login with OpenID Connect is refused";
    732 OidcProvider "The identity provider cannot be used";

    800 Migration "A migration fails";
    801 MigrationSource "The machine cannot be migrated";
    802 MigrationTarget "The target machine is not suitable";
    803 MigrationCopy "The transfer of a migration fails";
    804 MigrationEnded "The migration has ended";
    805 TransferDisk "A disk cannot be used for the transfer";
}
