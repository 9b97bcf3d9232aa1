//! The table, NVML half: every function of NVML's header, declared once, in the same sections as the CUDA half.
//!
//! All of them return `nvmlReturn_t`, except `nvmlErrorString`, which returns text: it is classified here and
//! declared where it is used.

/// Passes the whole NVML table to the macro `$with`, after `$args`.
#[macro_export]
macro_rules! nvml_table {
    ($with:ident $(, $($args:tt)*)?) => { $with! { $($($args)*)?
        hooks {
            entry {
                nvmlInit();
                nvmlInit_v2();
                nvmlInitWithFlags(flags: u32);
                nvmlShutdown();
            }
            view {
                nvmlDeviceGetMemoryInfo(dev: nvmlDevice_t, memory: *mut nvmlMemory_t);
                nvmlDeviceGetMemoryInfo_v2(dev: nvmlDevice_t, memory: *mut nvmlMemory_v2_t);
                nvmlDeviceGetBAR1MemoryInfo(dev: nvmlDevice_t, memory: *mut nvmlBAR1Memory_t);
                nvmlDeviceGetAttributes(dev: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);
                nvmlDeviceGetAttributes_v2(dev: nvmlDevice_t, attributes: *mut nvmlDeviceAttributes_t);
                nvmlDeviceGetUtilizationRates(dev: nvmlDevice_t, rates: *mut nvmlUtilization_t);
                nvmlDeviceGetSamples(dev: nvmlDevice_t, kind: u32, since: u64, value_type: *mut u32, count: *mut u32, samples: *mut nvmlSample_t);
            }
            processes {
                nvmlDeviceGetComputeRunningProcesses(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_v1_t);
                nvmlDeviceGetComputeRunningProcesses_v2(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t);
                nvmlDeviceGetComputeRunningProcesses_v3(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t);
                nvmlDeviceGetGraphicsRunningProcesses(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_v1_t);
                nvmlDeviceGetGraphicsRunningProcesses_v2(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t);
                nvmlDeviceGetGraphicsRunningProcesses_v3(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t);
                nvmlDeviceGetMPSComputeRunningProcesses(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_v1_t);
                nvmlDeviceGetMPSComputeRunningProcesses_v2(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t);
                nvmlDeviceGetMPSComputeRunningProcesses_v3(dev: nvmlDevice_t, count: *mut u32, infos: *mut nvmlProcessInfo_t);
                nvmlDeviceGetProcessUtilization(dev: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut u32, since: u64);
                nvmlDeviceGetRunningProcessDetailList(dev: nvmlDevice_t, list: *mut nvmlProcessDetailList_v1_t);
                nvmlDeviceGetAccountingPids(dev: nvmlDevice_t, count: *mut u32, pids: *mut u32);
                nvmlDeviceGetAccountingStats(dev: nvmlDevice_t, pid: u32, stats: *mut nvmlAccountingStats_t);
                nvmlSystemGetProcessName(pid: u32, name: *mut c_char, len: u32);
            }
            devices {
                nvmlDeviceGetCount(count: *mut u32);
                nvmlDeviceGetCount_v2(count: *mut u32);
                nvmlDeviceGetHandleByIndex(index: u32, dev: *mut nvmlDevice_t);
                nvmlDeviceGetHandleByIndex_v2(index: u32, dev: *mut nvmlDevice_t);
                nvmlDeviceGetHandleByUUID(uuid: *const c_char, dev: *mut nvmlDevice_t);
                nvmlDeviceGetHandleByUUIDV(uuid: *const c_void, dev: *mut nvmlDevice_t);
                nvmlDeviceGetHandleByPciBusId(text: *const c_char, dev: *mut nvmlDevice_t);
                nvmlDeviceGetHandleByPciBusId_v2(text: *const c_char, dev: *mut nvmlDevice_t);
                nvmlDeviceGetHandleBySerial(text: *const c_char, dev: *mut nvmlDevice_t);
                nvmlDeviceGetIndex(dev: nvmlDevice_t, index: *mut u32);
                nvmlDeviceGetMigDeviceHandleByIndex(dev: nvmlDevice_t, index: u32, mig: *mut nvmlDevice_t);
                nvmlDeviceGetTopologyNearestGpus(dev: nvmlDevice_t, level: u32, count: *mut u32, devs: *mut nvmlDevice_t);
                nvmlSystemGetTopologyGpuSet(cpu: u32, count: *mut u32, devs: *mut nvmlDevice_t);
            }
        }
        shut {
            deny "changes the device, or shows what instances others have: the driver's own permission code" {
                nvmlComputeInstanceDestroy;
                nvmlDeviceClearAccountingPids;
                nvmlDeviceClearEccErrorCounts;
                nvmlDeviceClearFieldValues;
                nvmlDeviceCreateGpuInstance;
                nvmlDeviceCreateGpuInstanceWithPlacement;
                nvmlDeviceDiscoverGpus;
                nvmlDeviceFreezeNvLinkUtilizationCounter;
                nvmlDeviceGetGpuInstanceById;
                nvmlDeviceGetGpuInstances;
                nvmlDeviceLockNvlinkRemapTable_v1;
                nvmlDeviceModifyDrainState;
                nvmlDevicePowerSmoothingActivatePresetProfile;
                nvmlDevicePowerSmoothingSetState;
                nvmlDevicePowerSmoothingUpdatePresetProfileParam;
                nvmlDeviceReadPRMCounters_v1;
                nvmlDeviceReadWritePRM_v1;
                nvmlDeviceRemoveGpu;
                nvmlDeviceRemoveGpu_v2;
                nvmlDeviceResetApplicationsClocks;
                nvmlDeviceResetGpuLockedClocks;
                nvmlDeviceResetMemoryLockedClocks;
                nvmlDeviceResetNvLinkErrorCounters;
                nvmlDeviceResetNvLinkUtilizationCounter;
                nvmlDeviceSetAPIRestriction;
                nvmlDeviceSetAccountingMode;
                nvmlDeviceSetAdaptiveTgpMode_v1;
                nvmlDeviceSetApplicationsClocks;
                nvmlDeviceSetAutoBoostedClocksEnabled;
                nvmlDeviceSetClockOffsets;
                nvmlDeviceSetComputeMode;
                nvmlDeviceSetConfComputeUnprotectedMemSize;
                nvmlDeviceSetDefaultAutoBoostedClocksEnabled;
                nvmlDeviceSetDefaultFanSpeed_v2;
                nvmlDeviceSetDramEncryptionMode;
                nvmlDeviceSetDriverModel;
                nvmlDeviceSetEccMode;
                nvmlDeviceSetFanControlPolicy;
                nvmlDeviceSetFanSpeed_v2;
                nvmlDeviceSetGpcClkVfOffset;
                nvmlDeviceSetGpuLockedClocks;
                nvmlDeviceSetGpuOperationMode;
                nvmlDeviceSetHostname_v1;
                nvmlDeviceSetMemClkVfOffset;
                nvmlDeviceSetMemoryLimits_v1;
                nvmlDeviceSetMemoryLockedClocks;
                nvmlDeviceSetMigMode;
                nvmlDeviceSetNvLinkDeviceLowPowerThreshold;
                nvmlDeviceSetNvLinkUtilizationControl;
                nvmlDeviceSetNvlinkBwMode;
                nvmlDeviceSetNvlinkBwModeAsync_v1;
                nvmlDeviceSetNvlinkNvleReady_v1;
                nvmlDeviceSetPersistenceMode;
                nvmlDeviceSetPowerManagementLimit;
                nvmlDeviceSetPowerManagementLimit_v2;
                nvmlDeviceSetPowerMizerMode_v1;
                nvmlDeviceSetRusdSettings_v1;
                nvmlDeviceSetTemperatureThreshold;
                nvmlDeviceSetVirtualizationMode;
                nvmlDeviceSetupNvlinkNvleEncryptionKey_v1;
                nvmlDeviceValidateInforom;
                nvmlDeviceWorkloadPowerProfileClearRequestedProfiles;
                nvmlDeviceWorkloadPowerProfileSetRequestedProfiles;
                nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1;
                nvmlGpmSetStreamingEnabled;
                nvmlGpuInstanceCreateComputeInstance;
                nvmlGpuInstanceCreateComputeInstanceWithPlacement;
                nvmlGpuInstanceDestroy;
                nvmlSystemSetConfComputeGpusReadyState;
                nvmlSystemSetConfComputeKeyRotationThresholdInfo;
                nvmlSystemSetNvlinkBwMode;
                nvmlUnitSetLedState;
            }
            hide "of the device as a whole, and nobody can tell what of it is the tenant's: not supported" {
                nvmlDeviceGetEncoderUtilization(dev: nvmlDevice_t, percent: *mut u32, period_us: *mut u32);
                nvmlDeviceGetDecoderUtilization(dev: nvmlDevice_t, percent: *mut u32, period_us: *mut u32);
                nvmlDeviceGetJpgUtilization(dev: nvmlDevice_t, percent: *mut u32, period_us: *mut u32);
                nvmlDeviceGetOfaUtilization(dev: nvmlDevice_t, percent: *mut u32, period_us: *mut u32);
                nvmlDeviceGetEncoderStats(dev: nvmlDevice_t, sessions: *mut u32, fps: *mut u32, latency_us: *mut u32);
                nvmlDeviceGetEncoderSessions;
                nvmlDeviceGetFBCSessions;
                nvmlDeviceGetProcessesUtilizationInfo;
                nvmlDevicePerfMetricsGetSamples_v1;
                nvmlGpmSampleGet;
                nvmlGpmMigSampleGet;
                nvmlGpmQueryDeviceSupport;
                nvmlGpmQueryIfStreamingEnabled;
                nvmlDeviceGetAccountingStats_v2;
                nvmlDeviceGetMemoryLimits_v1;
                nvmlDeviceGetConfComputeProtectedMemoryUsage;
                nvmlDeviceGetFBCStats;
                nvmlDeviceGetDynamicPstatesInfo;
            }
        }
        typed {
            pass "nothing of a tenant's" {
                nvmlSystemGetDriverVersion(text: *mut c_char, len: u32);
                nvmlSystemGetNVMLVersion(text: *mut c_char, len: u32);
                nvmlSystemGetCudaDriverVersion(version: *mut i32);
                nvmlSystemGetCudaDriverVersion_v2(version: *mut i32);
                nvmlDeviceGetBoardId(dev: nvmlDevice_t, board: *mut u32);
                nvmlDeviceGetBoardPartNumber(dev: nvmlDevice_t, text: *mut c_char, len: u32);
                nvmlDeviceGetBrand(dev: nvmlDevice_t, brand: *mut u32);
                nvmlDeviceGetBusType(dev: nvmlDevice_t, bus: *mut u32);
                nvmlDeviceGetMultiGpuBoard(dev: nvmlDevice_t, multi: *mut u32);
                nvmlDeviceGetMemoryBusWidth(dev: nvmlDevice_t, bits: *mut u32);
                nvmlDeviceGetVbiosVersion(dev: nvmlDevice_t, text: *mut c_char, len: u32);
                nvmlDeviceGetGspFirmwareVersion(dev: nvmlDevice_t, text: *mut c_char);
                nvmlDeviceGetGspFirmwareMode(dev: nvmlDevice_t, enabled: *mut u32, default: *mut u32);
                nvmlDeviceGetComputeMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetPersistenceMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetDisplayMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetDisplayActive(dev: nvmlDevice_t, active: *mut u32);
                nvmlDeviceGetVirtualizationMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetAPIRestriction(dev: nvmlDevice_t, api: u32, restricted: *mut u32);
                nvmlDeviceGetEccMode(dev: nvmlDevice_t, current: *mut u32, pending: *mut u32);
                nvmlDeviceGetDefaultEccMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetMemoryErrorCounter(dev: nvmlDevice_t, error: u32, counter: u32, location: u32, count: *mut u64);
                nvmlDeviceGetRetiredPagesPendingStatus(dev: nvmlDevice_t, pending: *mut u32);
                nvmlDeviceGetRemappedRows(dev: nvmlDevice_t, correctable: *mut u32, uncorrectable: *mut u32, pending: *mut u32, failed: *mut u32);
                nvmlDeviceGetNumFans(dev: nvmlDevice_t, fans: *mut u32);
                nvmlDeviceGetDefaultApplicationsClock(dev: nvmlDevice_t, clock: u32, mhz: *mut u32);
                nvmlDeviceGetMaxCustomerBoostClock(dev: nvmlDevice_t, clock: u32, mhz: *mut u32);
                nvmlDeviceGetCurrentClocksThrottleReasons(dev: nvmlDevice_t, reasons: *mut u64);
                nvmlDeviceGetCurrentClocksEventReasons(dev: nvmlDevice_t, reasons: *mut u64);
                nvmlDeviceGetGpuMaxPcieLinkGeneration(dev: nvmlDevice_t, generation: *mut u32);
                nvmlDeviceGetCpuAffinity(dev: nvmlDevice_t, words: u32, set: *mut u64);
                nvmlDeviceGetCpuAffinityWithinScope(dev: nvmlDevice_t, words: u32, set: *mut u64, scope: u32);
                nvmlDeviceGetMemoryAffinity(dev: nvmlDevice_t, words: u32, set: *mut u64, scope: u32);
                nvmlDeviceGetTopologyCommonAncestor(dev: nvmlDevice_t, other: nvmlDevice_t, level: *mut u32);
                nvmlDeviceGetP2PStatus(dev: nvmlDevice_t, other: nvmlDevice_t, index: u32, status: *mut u32);
                nvmlDeviceOnSameBoard(dev: nvmlDevice_t, other: nvmlDevice_t, same: *mut i32);
                nvmlEventSetCreate(set: *mut nvmlEventSet_t);
                nvmlEventSetFree(set: nvmlEventSet_t);
                nvmlUnitGetCount(count: *mut u32);
                nvmlGetExcludedDeviceCount(count: *mut u32);
                nvmlSystemGetHicVersion(count: *mut u32, entries: *mut c_void);
            }
            pass "private tables pass untouched" {
                nvmlInternalGetExportTable(table: *mut *const c_void, id: *const c_void);
            }
            pass "facts about the device" {
                nvmlDeviceGetMinorNumber(dev: nvmlDevice_t, minor: *mut u32);
                nvmlDeviceGetName(dev: nvmlDevice_t, name: *mut c_char, len: u32);
                nvmlDeviceGetUUID(dev: nvmlDevice_t, uuid: *mut c_char, len: u32);
                nvmlDeviceGetSerial(dev: nvmlDevice_t, serial: *mut c_char, len: u32);
                nvmlDeviceGetPciInfo(dev: nvmlDevice_t, pci: *mut nvmlPciInfo_v2_t);
                nvmlDeviceGetPciInfo_v2(dev: nvmlDevice_t, pci: *mut nvmlPciInfo_v2_t);
                nvmlDeviceGetPciInfo_v3(dev: nvmlDevice_t, pci: *mut nvmlPciInfo_t);
                nvmlDeviceGetArchitecture(dev: nvmlDevice_t, architecture: *mut u32);
                nvmlDeviceGetCudaComputeCapability(dev: nvmlDevice_t, major: *mut i32, minor: *mut i32);
                nvmlDeviceGetNumGpuCores(dev: nvmlDevice_t, cores: *mut u32);
            }
            pass "shared by all tenants" {
                nvmlDeviceGetTotalEccErrors(dev: nvmlDevice_t, error: u32, counter: u32, count: *mut u64);
                nvmlDeviceGetFanSpeed(dev: nvmlDevice_t, percent: *mut u32);
                nvmlDeviceGetFanSpeed_v2(dev: nvmlDevice_t, fan: u32, percent: *mut u32);
                nvmlDeviceGetClockInfo(dev: nvmlDevice_t, clock: u32, mhz: *mut u32);
                nvmlDeviceGetMaxClockInfo(dev: nvmlDevice_t, clock: u32, mhz: *mut u32);
                nvmlDeviceGetApplicationsClock(dev: nvmlDevice_t, clock: u32, mhz: *mut u32);
                nvmlDeviceGetClock(dev: nvmlDevice_t, clock: u32, which: u32, mhz: *mut u32);
                nvmlDeviceGetSupportedMemoryClocks(dev: nvmlDevice_t, count: *mut u32, mhz: *mut u32);
                nvmlDeviceGetSupportedGraphicsClocks(dev: nvmlDevice_t, memory_mhz: u32, count: *mut u32, mhz: *mut u32);
                nvmlDeviceGetSupportedClocksThrottleReasons(dev: nvmlDevice_t, reasons: *mut u64);
                nvmlDeviceGetSupportedClocksEventReasons(dev: nvmlDevice_t, reasons: *mut u64);
                nvmlDeviceGetTemperature(dev: nvmlDevice_t, sensor: u32, celsius: *mut u32);
                nvmlDeviceGetTemperatureThreshold(dev: nvmlDevice_t, threshold: u32, celsius: *mut u32);
                nvmlDeviceGetPerformanceState(dev: nvmlDevice_t, state: *mut u32);
                nvmlDeviceGetPowerState(dev: nvmlDevice_t, state: *mut u32);
                nvmlDeviceGetPowerUsage(dev: nvmlDevice_t, milliwatts: *mut u32);
                nvmlDeviceGetPowerManagementMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetPowerManagementLimit(dev: nvmlDevice_t, milliwatts: *mut u32);
                nvmlDeviceGetPowerManagementDefaultLimit(dev: nvmlDevice_t, milliwatts: *mut u32);
                nvmlDeviceGetPowerManagementLimitConstraints(dev: nvmlDevice_t, least: *mut u32, most: *mut u32);
                nvmlDeviceGetEnforcedPowerLimit(dev: nvmlDevice_t, milliwatts: *mut u32);
                nvmlDeviceGetTotalEnergyConsumption(dev: nvmlDevice_t, millijoules: *mut u64);
                nvmlDeviceGetCurrPcieLinkGeneration(dev: nvmlDevice_t, generation: *mut u32);
                nvmlDeviceGetCurrPcieLinkWidth(dev: nvmlDevice_t, lanes: *mut u32);
                nvmlDeviceGetMaxPcieLinkGeneration(dev: nvmlDevice_t, generation: *mut u32);
                nvmlDeviceGetMaxPcieLinkWidth(dev: nvmlDevice_t, lanes: *mut u32);
                nvmlDeviceGetPcieThroughput(dev: nvmlDevice_t, counter: u32, kib_per_s: *mut u32);
                nvmlDeviceGetPcieReplayCounter(dev: nvmlDevice_t, count: *mut u32);
                nvmlDeviceGetSupportedEventTypes(dev: nvmlDevice_t, types: *mut u64);
            }
            pass "MIG: facts about the board; which instances a tenant finds is told by their handles" {
                nvmlDeviceGetMigMode(dev: nvmlDevice_t, current: *mut u32, pending: *mut u32);
                nvmlDeviceGetMaxMigDeviceCount(dev: nvmlDevice_t, count: *mut u32);
                nvmlDeviceIsMigDeviceHandle(dev: nvmlDevice_t, is_mig: *mut u32);
            }
            pass "a mode of the device" {
                nvmlDeviceGetAccountingMode(dev: nvmlDevice_t, mode: *mut u32);
                nvmlDeviceGetAccountingBufferSize(dev: nvmlDevice_t, size: *mut u32);
            }
            pass "no field tells of processes, of memory in use, or of how busy the device is" {
                nvmlDeviceGetFieldValues(dev: nvmlDevice_t, count: i32, values: *mut nvmlFieldValue_t);
            }
            pass "device-wide events" {
                nvmlDeviceRegisterEvents(dev: nvmlDevice_t, types: u64, set: nvmlEventSet_t);
                nvmlEventSetWait(set: nvmlEventSet_t, data: *mut nvmlEventData_v1_t, timeout_ms: u32);
                nvmlEventSetWait_v2(set: nvmlEventSet_t, data: *mut nvmlEventData_t, timeout_ms: u32);
            }
        }
        named {
            pass "MIG: facts about the board, or about an instance whose handle the caller has" {
                nvmlComputeInstanceGetInfo nvmlComputeInstanceGetInfo_v2 nvmlDeviceGetComputeInstanceId
                nvmlDeviceGetDeviceHandleFromMigDeviceHandle nvmlDeviceGetGpuInstanceId
                nvmlDeviceGetGpuInstancePossiblePlacements nvmlDeviceGetGpuInstancePossiblePlacements_v2
                nvmlDeviceGetGpuInstanceProfileInfo nvmlDeviceGetGpuInstanceProfileInfoByIdV
                nvmlDeviceGetGpuInstanceProfileInfoV nvmlDeviceGetGpuInstanceRemainingCapacity
                nvmlGpuInstanceGetComputeInstanceById nvmlGpuInstanceGetComputeInstancePossiblePlacements
                nvmlGpuInstanceGetComputeInstanceProfileInfo nvmlGpuInstanceGetComputeInstanceProfileInfoV
                nvmlGpuInstanceGetComputeInstanceRemainingCapacity nvmlGpuInstanceGetComputeInstances
                nvmlGpuInstanceGetInfo
            }
            pass "the calling thread's own affinity" {
                nvmlDeviceSetCpuAffinity nvmlDeviceClearCpuAffinity
            }
            pass "shared by all tenants: which power profiles there are, and which is in force" {
                nvmlDeviceWorkloadPowerProfileGetCurrentProfiles nvmlDeviceWorkloadPowerProfileGetProfilesInfo
            }
            pass "works on samples that the caller has; under limits nobody hands it any" {
                nvmlGpmMetricsGet nvmlGpmSampleAlloc nvmlGpmSampleFree
            }
            pass "sizes that were set when the machine was started" {
                nvmlDeviceGetConfComputeMemSizeInfo
            }
            pass "nothing of a tenant's" {
                nvmlDeviceGetAdaptiveClockInfoStatus nvmlDeviceGetAdaptiveTgpModeInfo_v1
                nvmlDeviceGetAddressingMode nvmlDeviceGetAutoBoostedClocksEnabled
                nvmlDeviceGetBBXTimeData_v1 nvmlDeviceGetBankRemapperStatus_v1 nvmlDeviceGetBridgeChipInfo
                nvmlDeviceGetC2cModeInfoV nvmlDeviceGetCapabilities nvmlDeviceGetClkMonStatus
                nvmlDeviceGetConfComputeGpuAttestationReport nvmlDeviceGetConfComputeGpuCertificate
                nvmlDeviceGetCoolerInfo nvmlDeviceGetCurrentClockFreqs nvmlDeviceGetDetailedEccErrors
                nvmlDeviceGetDramEncryptionMode nvmlDeviceGetDriverModel nvmlDeviceGetDriverModel_v2
                nvmlDeviceGetEncoderCapacity
                nvmlDeviceGetGpcClkMinMaxVfOffset nvmlDeviceGetGpcClkVfOffset nvmlDeviceGetGpuFabricInfo
                nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetGpuFabricInfo_v4 nvmlDeviceGetGpuOperationMode
                nvmlDeviceGetGpuUptime_v1 nvmlDeviceGetGridLicensableFeatures
                nvmlDeviceGetGridLicensableFeatures_v2 nvmlDeviceGetGridLicensableFeatures_v3
                nvmlDeviceGetGridLicensableFeatures_v4 nvmlDeviceGetHostname_v1
                nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetInforomImageVersion
                nvmlDeviceGetInforomVersion nvmlDeviceGetIrqNum nvmlDeviceGetLastBBXFlushTime
                nvmlDeviceGetMarginTemperature nvmlDeviceGetMemClkMinMaxVfOffset nvmlDeviceGetMemClkVfOffset
                nvmlDeviceGetMinMaxClockOfPState nvmlDeviceGetMinMaxFanSpeed nvmlDeviceGetModuleId
                nvmlDeviceGetNumaNodeId nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkErrorCounter
                nvmlDeviceGetNvLinkInfo nvmlDeviceGetNvLinkInfo_v3 nvmlDeviceGetNvLinkRemoteDeviceType
                nvmlDeviceGetNvLinkRemotePciInfo nvmlDeviceGetNvLinkRemotePciInfo_v2
                nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkTelemetrySamples_v1
                nvmlDeviceGetNvLinkUtilizationControl nvmlDeviceGetNvLinkUtilizationCounter
                nvmlDeviceGetNvLinkVersion nvmlDeviceGetNvlinkBwMode nvmlDeviceGetNvlinkNvlePrivateInfo_v1
                nvmlDeviceGetNvlinkRemapTableInfo_v1 nvmlDeviceGetNvlinkSupportedBwModes nvmlDeviceGetPdi
                nvmlDeviceGetPgpuMetadataString nvmlDeviceGetPlatformInfo nvmlDeviceGetRemappedRows_v2
                nvmlDeviceGetRepairStatus nvmlDeviceGetRetiredPages nvmlDeviceGetRetiredPages_v2
                nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetSramEccErrorStatus
                nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts nvmlDeviceGetTargetFanSpeed
                nvmlDeviceGetUnrepairableMemoryFlag_v1 nvmlDeviceQueryDrainState nvmlErrorString
                nvmlEventSetGetContextCount_v1 nvmlEventSetGetContextData_v1 nvmlEventSetGetContextInfo_v1
                nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1
                nvmlEventSetRegisterGpuOperationalEvents_v1 nvmlGetBlacklistDeviceCount
                nvmlGetBlacklistDeviceInfoByIndex nvmlGetExcludedDeviceInfoByIndex nvmlSystemEventSetCreate
                nvmlSystemEventSetFree nvmlSystemEventSetWait nvmlSystemGetCPER_v1
                nvmlSystemGetConfComputeCapabilities nvmlSystemGetConfComputeGpusReadyState
                nvmlSystemGetConfComputeKeyRotationThresholdInfo nvmlSystemGetConfComputeSettings
                nvmlSystemGetConfComputeSettings_v2 nvmlSystemGetConfComputeState nvmlSystemGetDriverBranch
                nvmlSystemGetNvlinkBwMode nvmlSystemRegisterEvents nvmlUnitGetDevices
                nvmlUnitGetFanSpeedInfo nvmlUnitGetHandleByIndex nvmlUnitGetLedState nvmlUnitGetPsuInfo
                nvmlUnitGetTemperature nvmlUnitGetUnitInfo
            }
            pass "host side of another product" {
                nvmlDeviceGetActiveVgpus nvmlDeviceGetCreatableVgpus nvmlDeviceGetHostVgpuMode
                nvmlDeviceGetSupportedVgpus nvmlDeviceGetVgpuCapabilities nvmlDeviceGetVgpuHeterogeneousMode
                nvmlDeviceGetVgpuInstancesUtilizationInfo nvmlDeviceGetVgpuMetadata
                nvmlDeviceGetVgpuProcessUtilization nvmlDeviceGetVgpuProcessesUtilizationInfo
                nvmlDeviceGetVgpuSchedulerCapabilities nvmlDeviceGetVgpuSchedulerLog
                nvmlDeviceGetVgpuSchedulerLog_v2 nvmlDeviceGetVgpuSchedulerState
                nvmlDeviceGetVgpuSchedulerState_v2 nvmlDeviceGetVgpuTypeCreatablePlacements
                nvmlDeviceGetVgpuTypeSupportedPlacements nvmlDeviceGetVgpuUtilization
                nvmlDeviceSetVgpuCapabilities nvmlDeviceSetVgpuHeterogeneousMode
                nvmlDeviceSetVgpuSchedulerState nvmlDeviceSetVgpuSchedulerState_v2
                nvmlDeviceVgpuForceGspUnload nvmlGetVgpuCompatibility nvmlGetVgpuDriverCapabilities
                nvmlGetVgpuVersion nvmlGpuInstanceGetActiveVgpus nvmlGpuInstanceGetCreatableVgpus
                nvmlGpuInstanceGetVgpuHeterogeneousMode nvmlGpuInstanceGetVgpuSchedulerLog
                nvmlGpuInstanceGetVgpuSchedulerLog_v2 nvmlGpuInstanceGetVgpuSchedulerState
                nvmlGpuInstanceGetVgpuSchedulerState_v2 nvmlGpuInstanceGetVgpuTypeCreatablePlacements
                nvmlGpuInstanceSetVgpuHeterogeneousMode nvmlGpuInstanceSetVgpuSchedulerState
                nvmlGpuInstanceSetVgpuSchedulerState_v2 nvmlSetVgpuVersion
                nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceGetAccountingMode
                nvmlVgpuInstanceGetAccountingPids nvmlVgpuInstanceGetAccountingStats
                nvmlVgpuInstanceGetEccMode nvmlVgpuInstanceGetEncoderCapacity
                nvmlVgpuInstanceGetEncoderSessions nvmlVgpuInstanceGetEncoderStats
                nvmlVgpuInstanceGetFBCSessions nvmlVgpuInstanceGetFBCStats nvmlVgpuInstanceGetFbUsage
                nvmlVgpuInstanceGetFrameRateLimit nvmlVgpuInstanceGetGpuInstanceId
                nvmlVgpuInstanceGetGpuPciId nvmlVgpuInstanceGetLicenseInfo nvmlVgpuInstanceGetLicenseInfo_v2
                nvmlVgpuInstanceGetLicenseStatus nvmlVgpuInstanceGetMdevUUID nvmlVgpuInstanceGetMetadata
                nvmlVgpuInstanceGetPlacementId nvmlVgpuInstanceGetRuntimeStateSize nvmlVgpuInstanceGetType
                nvmlVgpuInstanceGetUUID nvmlVgpuInstanceGetVmDriverVersion nvmlVgpuInstanceGetVmID
                nvmlVgpuInstanceSetEncoderCapacity nvmlVgpuTypeGetBAR1Info nvmlVgpuTypeGetCapabilities
                nvmlVgpuTypeGetClass nvmlVgpuTypeGetDeviceID nvmlVgpuTypeGetFbReservation
                nvmlVgpuTypeGetFrameRateLimit nvmlVgpuTypeGetFramebufferSize
                nvmlVgpuTypeGetGpuInstanceProfileId nvmlVgpuTypeGetGspHeapSize nvmlVgpuTypeGetLicense
                nvmlVgpuTypeGetMaxInstances nvmlVgpuTypeGetMaxInstancesPerGpuInstance
                nvmlVgpuTypeGetMaxInstancesPerVm nvmlVgpuTypeGetName nvmlVgpuTypeGetNumDisplayHeads
                nvmlVgpuTypeGetResolution
            }
            pass "shared by all tenants" {
                nvmlDeviceGetClockOffsets nvmlDeviceGetFanControlPolicy_v2 nvmlDeviceGetFanSpeedRPM
                nvmlDeviceGetPcieLinkMaxSpeed nvmlDeviceGetPcieSpeed nvmlDeviceGetPerformanceModes
                nvmlDeviceGetPowerMizerMode_v1 nvmlDeviceGetPowerSource
                nvmlDeviceGetSupportedPerformanceStates nvmlDeviceGetTemperatureV
                nvmlDeviceGetThermalSettings nvmlDeviceGetViolationStatus
            }
            pass "facts about the device" {
                nvmlDeviceGetPciInfoExt
            }
            pass "device-wide events" {
                nvmlEventSetWait_v3
            }
        }
    } };
}
