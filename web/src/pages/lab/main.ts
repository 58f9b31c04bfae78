import { mount } from 'svelte';
import '../../lib/base.css';
import '../report/report.css';
import Lab from './Lab.svelte';

mount(Lab, { target: document.getElementById('app')! });
